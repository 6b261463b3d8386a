/*
 * ums.h: user-mode scheduling for Linux, for C and C++. The manual is docs/c-api.md.
 *
 * Functions that can fail return 0 or more, or a negative errno; ums_last_error() has a message.
 * Times are in nanoseconds. Written from the sources of ums-capi by cbindgen: do not edit.
 */

#ifndef UMS_H
#define UMS_H

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

/**
 * Workers are threads: any code may run on them.
 */
#define UMS_WORKERS_THREAD 0

/**
 * Workers are fibers: a switch costs nanoseconds. Code that runs on them must keep no
 * thread-scoped state (thread-local variables, locks that belong to a thread) across a wait.
 */
#define UMS_WORKERS_FIBER 1

/**
 * A user's requests go to its scheduler unless that is much busier than the least loaded one.
 */
#define UMS_PLACEMENT_HINTED 0

/**
 * A user stays for its whole life on the scheduler that had the fewest users when it was created.
 */
#define UMS_PLACEMENT_CLASSIC 1

/**
 * Each request goes to the scheduler with the least load.
 */
#define UMS_PLACEMENT_LEAST_LOADED 2

/**
 * Each request goes to its user's scheduler, whatever the load of that scheduler.
 */
#define UMS_PLACEMENT_ALWAYS_PREFERRED 3

/**
 * The best I/O back end that the system allows.
 */
#define UMS_IO_AUTO 0

/**
 * io_uring. If the system does not allow it, ums_node_new fails.
 */
#define UMS_IO_URING 1

/**
 * epoll with file helpers.
 */
#define UMS_IO_EPOLL 2

/**
 * Plain calls that block.
 */
#define UMS_IO_SYNC 3

/**
 * The behaviour of the original as a whole: classic placement, a runnable list that is first in
 * first out, 255 workers, no polling before a scheduler sleeps. Overrides `placement` and
 * `max_workers`.
 */
#define UMS_CLASSIC 1

/**
 * Pins each scheduler's threads to a processor of its own.
 */
#define UMS_PIN 2

/**
 * Backs the stacks of fibers with memory when they are created.
 */
#define UMS_PRECOMMIT_STACKS 4

/**
 * Writes no messages to stderr about things that the program's user can correct, such as a worker
 * that does not yield. Then there is also no thread that looks for such workers.
 */
#define UMS_NO_WARNINGS 8

/**
 * A thread worker that is blocked in the kernel keeps its scheduler. Without this flag such a
 * worker loses the scheduler after some 10 milliseconds, and the code after its block runs in
 * parallel with the scheduler's other workers until its next call of this library.
 */
#define UMS_KEEP_BLOCKED 16

/**
 * A scheduler without work sleeps at once. Without this flag it may poll first for as long as
 * `idle_spin_ns` says.
 */
#define UMS_NO_IDLE_SPIN 32

/**
 * No time limit.
 */
#define UMS_FOREVER UINT64_MAX

/**
 * The offset that means the file's own position; the only one that pipes and sockets have.
 */
#define UMS_CURRENT UINT64_MAX

/**
 * A condition variable.
 */
typedef struct ums_condvar ums_condvar;

/**
 * An event, which any thread may set, and for which many may wait.
 */
typedef struct ums_event ums_event;

/**
 * A lock that belongs to the worker (or thread) that has locked it; first come, first served.
 */
typedef struct ums_mutex ums_mutex;

/**
 * A process's set of schedulers.
 */
typedef struct ums_node ums_node;

/**
 * A submitted request, which can be cancelled.
 */
typedef struct ums_pending ums_pending;

/**
 * A semaphore; first come, first served.
 */
typedef struct ums_semaphore ums_semaphore;

/**
 * A queued, running or ended task.
 */
typedef struct ums_task ums_task;

/**
 * A logical connection. Each of its work requests is carried out by one worker from start to end.
 */
typedef struct ums_user ums_user;

/**
 * A function that a worker runs. It must return: neither exceptions nor longjmp, pthread_exit or
 * thread cancellation may leave it.
 */
typedef void *(*ums_function)(void *arg);

/**
 * The options of a node. Set `size` to sizeof(ums_options), and all other fields to zero for the
 * defaults.
 */
typedef struct ums_options {
    /**
     * sizeof(ums_options).
     */
    size_t size;
    /**
     * Number of schedulers; 0: one per processor that the process may use.
     */
    size_t schedulers;
    /**
     * Maximum number of workers; 0: as many as the computer has room for.
     */
    size_t max_workers;
    /**
     * Number of workers that each scheduler keeps, however long they are idle; 0: one.
     */
    size_t min_workers;
    /**
     * Number of requests that may wait for a worker on one scheduler before more are refused; 0:
     * 1048576.
     */
    size_t queue_limit;
    /**
     * Bytes of a worker's stack; 0: 2 MiB for threads, 256 KiB for fibers.
     */
    size_t stack_size;
    /**
     * Maximum number of workers of one scheduler that may be preemptive at the same time; 0: no
     * limit.
     */
    size_t preemptive_limit;
    /**
     * How long a worker may be idle before it is destroyed; 0: 15 minutes.
     */
    uint64_t idle_worker_timeout_ns;
    /**
     * How long a scheduler without work polls before it sleeps; 0: for as long as that pays, at
     * most 50 us and 5 % of the time; see also UMS_NO_IDLE_SPIN.
     */
    uint64_t idle_spin_ns;
    /**
     * How long a request may wait for a worker; 0: no limit.
     */
    uint64_t queue_timeout_ns;
    /**
     * UMS_WORKERS_...
     */
    uint32_t worker_kind;
    /**
     * UMS_PLACEMENT_...
     */
    uint32_t placement;
    /**
     * UMS_IO_...
     */
    uint32_t io;
    /**
     * UMS_CLASSIC, UMS_PIN, UMS_PRECOMMIT_STACKS, UMS_NO_WARNINGS, UMS_KEEP_BLOCKED,
     * UMS_NO_IDLE_SPIN, combined with |.
     */
    uint32_t flags;
} ums_options;

/**
 * The result of a shutdown.
 */
typedef struct ums_shutdown_report {
    /**
     * The number of requests that had not ended when the grace time was over, and were cancelled.
     */
    size_t cancelled;
    /**
     * The number of workers that could not be ended. Their threads and stacks are leaked on
     * purpose.
     */
    size_t left;
} ums_shutdown_report;

/**
 * Called once when the request has ended, with the number of bytes (accept: the new descriptor),
 * or a negative errno (-ECANCELED: it was cancelled). It runs between two workers of the
 * scheduler, or before the submitting call returns. It may enqueue, submit and set events. It must
 * not wait.
 */
typedef void (*ums_routine)(void *arg, int64_t result);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the message of the calling thread's last failed call, or an empty text if none has
 * failed. It is valid until the next call that fails on the same thread. Workers that are fibers
 * share a thread.
 */
const char *ums_last_error(void);

/**
 * Returns the version of the library: major << 16 | minor << 8 | patch.
 */
uint32_t ums_version(void);

/**
 * Queues a task on the scheduler of the calling worker. `task` may be NULL: then it runs
 * detached. On a plain thread: -EPERM (use ums_node_spawn). -EAGAIN: the work queue is full.
 */
int ums_spawn(ums_function function, void *arg, struct ums_task **task);

/**
 * Waits for the task's end, for at most this long (UMS_FOREVER: no limit), and returns its result;
 * `result` may be NULL. Then the task pointer is freed. It stays valid only on -ETIMEDOUT, on
 * -ECANCELED (the caller's own work request was cancelled while it waited with a limit), on
 * -EDEADLK (this wait was ended to resolve a deadlock) and on -EBUSY (another caller waits for
 * it). -ENODATA: the task was cancelled before it began.
 */
int ums_task_join(struct ums_task *task, uint64_t timeout_ns, void **result);

/**
 * Detaches the task; the pointer is freed. -EBUSY: a caller waits for it.
 */
int ums_task_detach(struct ums_task *task);

/**
 * Cancels the task. If no worker has begun it, it never runs. Otherwise its waits and its calls of
 * ums_checkpoint fail with -ECANCELED. It is never stopped by force.
 */
int ums_task_cancel(struct ums_task *task);

/**
 * Returns true if the task has ended; false also for a bad pointer.
 */
bool ums_task_is_finished(const struct ums_task *task);

/**
 * Returns the number of its work request, as statistics show it; 0 for a bad pointer.
 */
uint64_t ums_task_request_id(const struct ums_task *task);

/**
 * Builds a node and starts its schedulers. If `options` is NULL, all options have their defaults.
 */
int ums_node_new(const struct ums_options *options, struct ums_node **node);

/**
 * Shuts the node down in this order: accepts no more work, lets running requests finish during the
 * grace time, cancels the others, and ends every worker. `report` may be NULL. On a worker:
 * -EDEADLK. A second call has no effect.
 */
int ums_node_shutdown(struct ums_node *node, uint64_t grace_ns, struct ums_shutdown_report *report);

/**
 * Like `ums_node_shutdown`, for a node that serves clients: cancels tasks that wait for a
 * connection first, and those that begin such a wait later, so that the other tasks get the grace
 * time.
 */
int ums_node_drain(struct ums_node *node, uint64_t grace_ns, struct ums_shutdown_report *report);

/**
 * Frees the node. If it was not shut down, shuts it down with a grace time of 10 seconds. NULL is
 * allowed. Users, tasks and pending requests of the node may be freed afterwards. On a worker:
 * -EDEADLK.
 */
int ums_node_free(struct ums_node *node);

/**
 * Returns the number of its schedulers; 0 for a bad pointer.
 */
size_t ums_node_scheduler_count(const struct ums_node *node);

/**
 * Runs the function on a worker and waits for its result. This is how a plain thread calls code on
 * a worker. `result` may be NULL. -ENODATA: the node was shut down before the function began.
 */
int ums_node_run(struct ums_node *node, ums_function function, void *arg, void **result);

/**
 * Queues a task: on the least loaded scheduler, or, if the caller is a worker, on its own
 * scheduler. `task` may be NULL; then the task runs detached. -EAGAIN: the work queue is full.
 * -ESHUTDOWN: the node accepts no more work.
 */
int ums_node_spawn(struct ums_node *node, ums_function function, void *arg, struct ums_task **task);

/**
 * Like ums_node_spawn, on this scheduler. No other scheduler takes the task from it.
 */
int ums_node_spawn_on(struct ums_node *node,
                      size_t scheduler_number,
                      ums_function function,
                      void *arg,
                      struct ums_task **task);

/**
 * Queues a task on the hidden scheduler with this name, whose workers are threads. It is for work
 * that should not delay the other schedulers. It is created at its first use, with at most
 * `max_workers` workers (0: as many as a node for one processor).
 */
int ums_node_spawn_hidden(struct ums_node *node,
                          const char *name,
                          size_t max_workers,
                          ums_function function,
                          void *arg,
                          struct ums_task **task);

/**
 * Cancels the request that the user with this number enqueued last. -ESRCH: there is no such user,
 * or its request has ended.
 */
int ums_node_cancel(struct ums_node *node, uint64_t user);

/**
 * Takes a scheduler out of service for new work, or returns it to service. -EBUSY: it is the last
 * scheduler online.
 */
int ums_node_set_online(struct ums_node *node, size_t scheduler_number, bool online);

/**
 * Creates a user, on the scheduler that the node's placement chooses.
 */
int ums_user_new(struct ums_node *node, struct ums_user **user);

/**
 * Frees the user, which leaves its scheduler. Requests that it has enqueued are still carried out.
 * NULL is allowed.
 */
int ums_user_free(struct ums_user *user);

/**
 * Returns the user's number, which no other user of the process has; 0 for a bad pointer.
 */
uint64_t ums_user_id(const struct ums_user *user);

/**
 * Returns the number of the user's preferred scheduler, or a negative errno.
 */
int ums_user_scheduler(const struct ums_user *user);

/**
 * Enqueues a work request of the user. `task` may be NULL; then the request runs detached.
 * -EAGAIN: the work queue is full. -ESHUTDOWN: the node accepts no more work.
 */
int ums_user_enqueue(struct ums_user *user,
                     ums_function function,
                     void *arg,
                     struct ums_task **task);

/**
 * Records that the user holds something that others may wait for. Until ums_user_release its
 * requests never wait for a worker. Holds are counted.
 */
int ums_user_hold(struct ums_user *user);

/**
 * Ends the effect of one ums_user_hold. -EPERM: there is none.
 */
int ums_user_release(struct ums_user *user);

/**
 * Cancels the request that the user enqueued last. -ESRCH: the request has ended, or there was
 * none.
 */
int ums_user_cancel(struct ums_user *user);

/**
 * Returns true if the user's last request is queued or being carried out; false for a bad pointer.
 */
bool ums_user_is_busy(const struct ums_user *user);

/**
 * Lets the other workers of this scheduler run. On a plain thread, lets other threads run.
 */
void ums_yield(void);

/**
 * Yields if the caller has run for 4 ms since it was last switched to. Returns true if it has
 * yielded.
 */
bool ums_yield_if_due(void);

/**
 * For long loops: yields if the caller's 4 ms are used up. -ECANCELED: the work request was
 * cancelled.
 */
int ums_checkpoint(void);

/**
 * Returns true if the caller's work request was cancelled. Returns false on a plain thread.
 */
bool ums_is_cancelled(void);

/**
 * Waits for this long. Other workers run meanwhile. -ECANCELED: the work request was cancelled.
 */
int ums_sleep(uint64_t ns);

/**
 * Returns true if the caller is a worker that runs on its scheduler at this moment.
 */
bool ums_is_worker(void);

/**
 * Returns the number of the caller's scheduler. -EPERM: the caller is a plain thread, or
 * preemptive.
 */
int ums_scheduler_id(void);

/**
 * Runs external code that may block or run for a long time. Other workers run on the scheduler
 * meanwhile. `reason` names the kind of call in statistics; NULL means PREEMPTIVE_EXTERNAL. A
 * process can have about a hundred names (-ENOSPC). A fiber worker's call runs on another thread.
 * `result` may be NULL. On a plain thread the function is called directly.
 */
int ums_go_preemptive(const char *reason, ums_function function, void *arg, void **result);

/**
 * Creates a mutex.
 */
int ums_mutex_new(struct ums_mutex **mutex);

/**
 * Frees a mutex. NULL is allowed. -EBUSY: the mutex is locked.
 */
int ums_mutex_free(struct ums_mutex *mutex);

/**
 * Locks a mutex, waiting for at most this long. -EDEADLK: the caller has locked it already.
 */
int ums_mutex_lock(struct ums_mutex *mutex, uint64_t timeout_ns);

/**
 * Unlocks a mutex. -EPERM: the caller has not locked it.
 */
int ums_mutex_unlock(struct ums_mutex *mutex);

/**
 * Creates a condition variable.
 */
int ums_condvar_new(struct ums_condvar **condvar);

/**
 * Frees a condition variable. NULL is allowed. -EBUSY: the condition variable has waiters.
 */
int ums_condvar_free(struct ums_condvar *condvar);

/**
 * Unlocks the mutex, waits for a notification, and locks the mutex again, even if it returns
 * -ETIMEDOUT or -ECANCELED. The condition may have changed meanwhile, so check it again. -EPERM:
 * the caller has not locked the mutex.
 */
int ums_condvar_wait(struct ums_condvar *condvar, struct ums_mutex *mutex, uint64_t timeout_ns);

/**
 * Wakes the first waiter.
 */
int ums_condvar_notify_one(struct ums_condvar *condvar);

/**
 * Wakes all current waiters.
 */
int ums_condvar_notify_all(struct ums_condvar *condvar);

/**
 * Creates an event. A manual event stays set until it is reset. An automatic event lets one waiter
 * continue each time it is set.
 */
int ums_event_new(bool manual, bool is_set, struct ums_event **event);

/**
 * Frees an event. NULL is allowed. -EBUSY: the event has waiters.
 */
int ums_event_free(struct ums_event *event);

/**
 * Sets an event.
 */
int ums_event_set(struct ums_event *event);

/**
 * Resets an event. Returns 1 if it was set, 0 if it was not.
 */
int ums_event_reset(struct ums_event *event);

/**
 * Returns true if it is set; false for a bad pointer.
 */
bool ums_event_is_set(const struct ums_event *event);

/**
 * Waits until the event is set, for at most this long.
 */
int ums_event_wait(struct ums_event *event, uint64_t timeout_ns);

/**
 * Creates a semaphore with this many permits.
 */
int ums_semaphore_new(size_t permits, struct ums_semaphore **semaphore);

/**
 * Frees a semaphore. NULL is allowed. -EBUSY: the semaphore has waiters.
 */
int ums_semaphore_free(struct ums_semaphore *semaphore);

/**
 * Acquires one permit, waiting for at most this long.
 */
int ums_semaphore_acquire(struct ums_semaphore *semaphore, uint64_t timeout_ns);

/**
 * Releases permits. Another worker may have acquired them. -EOVERFLOW: the semaphore would have
 * more than SIZE_MAX / 2 permits.
 */
int ums_semaphore_release(struct ums_semaphore *semaphore, size_t permits);

/**
 * Returns how many permits are available; 0 for a bad pointer.
 */
size_t ums_semaphore_available(const struct ums_semaphore *semaphore);

/**
 * Submits a read. Returns 1 if it completed at once: then the routine has been called and
 * `*pending` is NULL; otherwise 0. `pending` may be NULL. The request uses the buffer until the
 * routine is called. On a plain thread this call blocks until the read has completed.
 */
int ums_submit_read(int fd,
                    void *buffer,
                    size_t len,
                    uint64_t offset,
                    ums_routine routine,
                    void *arg,
                    struct ums_pending **pending);

/**
 * Submits a write of the buffer's bytes. Otherwise as ums_submit_read.
 */
int ums_submit_write(int fd,
                     const void *buffer,
                     size_t len,
                     uint64_t offset,
                     ums_routine routine,
                     void *arg,
                     struct ums_pending **pending);

/**
 * Submits a read into several buffers, one after another. The array may be freed; the buffers must
 * stay. Otherwise as ums_submit_read.
 */
int ums_submit_readv(int fd,
                     const struct iovec *iov,
                     size_t count,
                     uint64_t offset,
                     ums_routine routine,
                     void *arg,
                     struct ums_pending **pending);

/**
 * Submits a write from several buffers, one after another. The array may be freed; the buffers
 * must stay. Otherwise as ums_submit_write.
 */
int ums_submit_writev(int fd,
                      const struct iovec *iov,
                      size_t count,
                      uint64_t offset,
                      ums_routine routine,
                      void *arg,
                      struct ums_pending **pending);

/**
 * Submits a sync, which completes when everything that was written to the file is on the disk;
 * with `metadata` also the file's metadata. Otherwise as ums_submit_read.
 */
int ums_submit_sync(int fd,
                    bool metadata,
                    ums_routine routine,
                    void *arg,
                    struct ums_pending **pending);

/**
 * Submits an accept of one connection. The result is the connection's descriptor, in
 * non-blocking mode. Otherwise as ums_submit_read.
 */
int ums_submit_accept(int fd, ums_routine routine, void *arg, struct ums_pending **pending);

/**
 * Submits a connect of a socket. The address is copied. Otherwise as ums_submit_read.
 */
int ums_submit_connect(int fd,
                       const struct sockaddr *addr,
                       socklen_t len,
                       ums_routine routine,
                       void *arg,
                       struct ums_pending **pending);

/**
 * Asks the system to cancel the request. Its routine is called nevertheless, with -ECANCELED or
 * with the real result. If the request has ended, this has no effect.
 */
int ums_pending_cancel(struct ums_pending *pending);

/**
 * Frees the pointer, not the request, which continues. NULL is allowed.
 */
int ums_pending_free(struct ums_pending *pending);

/**
 * Reads, and waits until the read has completed; other workers run meanwhile. Returns the number
 * of bytes.
 */
int64_t ums_read(int fd, void *buffer, size_t len, uint64_t offset, uint64_t timeout_ns);

/**
 * Writes, and waits until the write has completed; other workers run meanwhile. Returns the number
 * of bytes.
 */
int64_t ums_write(int fd, const void *buffer, size_t len, uint64_t offset, uint64_t timeout_ns);

/**
 * Waits for a connection, and accepts it. Returns its descriptor, in non-blocking mode.
 */
int ums_accept(int fd, uint64_t timeout_ns);

/**
 * Connects a socket in non-blocking mode, and waits until it is connected.
 */
int ums_connect(int fd, const struct sockaddr *addr, socklen_t len, uint64_t timeout_ns);

/**
 * Stores the statistics of the original as text: a header, then a name and a value on each line.
 * The caller frees the text with ums_text_free.
 */
int ums_node_stats_text(const struct ums_node *node, char **text);

/**
 * Stores all statistics of the node as JSON: an object with an array for each table
 * (ums_schedulers, ums_workers, ums_requests, ums_waiting_tasks, ums_wait_stats and others); an
 * array has an object for each row. The caller frees the text with ums_text_free.
 */
int ums_node_stats_json(const struct ums_node *node, char **text);

/**
 * Frees a text. NULL is allowed.
 */
void ums_text_free(char *text);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UMS_H */
