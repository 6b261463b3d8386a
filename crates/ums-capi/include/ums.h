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
 * Workers are threads with their own context, which are switched in user mode: any code may run on
 * them, and a switch costs little more than that of a fiber. Other workers run while one is in a
 * call of the C library that blocks. If the system cannot do it, ums_node_new fails with -EINVAL.
 */
#define UMS_WORKERS_CONTEXT 2

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
 * A worker that blocks in the kernel is detected at once: its scheduler runs other workers, and
 * its own code continues when the scheduler has chosen it again. For workers that are threads or
 * have their own context.
 */
#define UMS_DETECT_BLOCKING 64

/**
 * The monitor looks for all conditions, with the limits of the fields from `stall_ns` on, and
 * writes a report of each to stderr. Without this flag it writes a sentence about a few of them.
 */
#define UMS_MONITOR 128

/**
 * The report of a deadlock says where each lock was taken, and each reader of an ums_rwlock counts
 * as an owner. It costs a few microseconds for each lock that is taken, in the whole process.
 */
#define UMS_TRACE_LOCKS 256

/**
 * The monitor writes no reports to stderr; on_report gets them.
 */
#define UMS_NO_REPORTS 512

/**
 * No time limit.
 */
#define UMS_FOREVER UINT64_MAX

/**
 * For ums_group_options: keeps what each task has returned, until ums_group_next takes it or the
 * group is freed.
 */
#define UMS_GROUP_RESULTS 1

/**
 * The offset that means the file's own position; the only one that pipes and sockets have.
 */
#define UMS_CURRENT UINT64_MAX

/**
 * A read would find input, the end, or an error.
 */
#define UMS_READABLE 1

/**
 * A write would find room or an error.
 */
#define UMS_WRITABLE 2

/**
 * Receives from the channel `object`, and stores the pointer in `value`.
 */
#define UMS_ARM_RECV 1

/**
 * Sends `value` to the channel `object`.
 */
#define UMS_ARM_SEND 2

/**
 * Waits for the end of the task `object`, and stores its result in `value`. If this arm happens,
 * the task pointer is freed, as by ums_task_join.
 */
#define UMS_ARM_TASK 3

/**
 * Waits for the event `object`.
 */
#define UMS_ARM_EVENT 4

/**
 * Acquires a permit of the semaphore `object`.
 */
#define UMS_ARM_SEMAPHORE 5

/**
 * Waits until a read of `fd` would find input, the end, or an error.
 */
#define UMS_ARM_READABLE 6

/**
 * Waits until a write to `fd` would find room or an error.
 */
#define UMS_ARM_WRITABLE 7

/**
 * For ums_select: of several arms that are ready, takes the first. Without it, takes one of them
 * at random, so that none starves.
 */
#define UMS_SELECT_BIASED 1

/**
 * A point where a fixed number of callers wait for each other.
 */
typedef struct ums_barrier ums_barrier;

/**
 * A queue of pointers between workers and threads; first come, first served.
 */
typedef struct ums_channel ums_channel;

/**
 * A condition variable.
 */
typedef struct ums_condvar ums_condvar;

/**
 * An event, which any thread may set, and for which many may wait.
 */
typedef struct ums_event ums_event;

/**
 * Tasks that end together.
 */
typedef struct ums_group ums_group;

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
 * A lock that several readers may have at the same time, or one writer alone; first come, first
 * served.
 */
typedef struct ums_rwlock ums_rwlock;

/**
 * A semaphore; first come, first served.
 */
typedef struct ums_semaphore ums_semaphore;

/**
 * A listening socket whose connections are served.
 */
typedef struct ums_server ums_server;

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
 * A finding of the monitor.
 */
typedef struct ums_report {
    /**
     * sizeof(ums_report) of this version of the library.
     */
    size_t size;
    /**
     * What is wrong: "STALL", "NON-YIELDING", "SLOW ROUTINE", "NO WORKERS", "NOT PICKED UP",
     * "ALL STUCK", "SLOW SUBMISSION", "SLOW I/O" or "DEADLOCK".
     */
    const char *condition;
    /**
     * The report as it is written to stderr, of several lines.
     */
    const char *text;
    /**
     * How long the condition has lasted.
     */
    uint64_t lasted_ns;
    /**
     * The number of the scheduler.
     */
    size_t scheduler;
    /**
     * The number of the work request that the worker carries out; 0 for none.
     */
    uint64_t request;
    /**
     * The number of the request's user; 0 for none.
     */
    uint64_t user;
} ums_report;

/**
 * Called with each report, on the monitor's thread, which looks at no scheduler until the function
 * returns. The report and its texts are valid until then.
 */
typedef void (*ums_on_report)(void *arg, const struct ums_report *report);

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
     * UMS_NO_IDLE_SPIN, UMS_DETECT_BLOCKING, UMS_MONITOR, UMS_TRACE_LOCKS, UMS_NO_REPORTS,
     * combined with |.
     */
    uint32_t flags;
    /**
     * For the monitor, as all fields below, which need UMS_MONITOR: how long a worker or a
     * completion routine may run without yielding before it is reported; 0: 200 ms.
     */
    uint64_t stall_ns;
    /**
     * The same for a worker whose thread gets no processor; 0: 1 s.
     */
    uint64_t starved_ns;
    /**
     * After what time such a worker is reported as non-yielding; 0: 10 s.
     */
    uint64_t non_yield_ns;
    /**
     * After what time the request of such a worker is cancelled; 0: never.
     */
    uint64_t cancel_after_ns;
    /**
     * How long requests may wait, while all workers wait too, before that is reported; 0: 1 s.
     */
    uint64_t no_workers_ns;
    /**
     * How long requests may wait for any other reason before that is reported; 0: 10 s.
     */
    uint64_t not_picked_up_ns;
    /**
     * How long no scheduler may have picked up a request before that is reported; 0: 60 s.
     */
    uint64_t all_stuck_ns;
    /**
     * How long a wait must last before the monitor looks whether it is part of a deadlock, which
     * it reports, and breaks by ending one wait with -EDEADLK; 0: 1 s. UMS_FOREVER: never.
     */
    uint64_t deadlock_ns;
    /**
     * After what time a condition that lasts is reported again; 0: 60 s.
     */
    uint64_t repeat_ns;
    /**
     * Called with each report; may be NULL.
     */
    ums_on_report on_report;
    /**
     * The argument of on_report.
     */
    void *report_arg;
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
     * The number of workers that could not be ended, because their functions still run: do not
     * free what these use. Their threads and stacks are leaked on purpose.
     */
    size_t left;
} ums_shutdown_report;

/**
 * The options of a group. Set `size` to sizeof(ums_group_options), and other fields to zero for
 * their defaults.
 */
typedef struct ums_group_options {
    /**
     * sizeof(ums_group_options).
     */
    size_t size;
    /**
     * How many tasks of the group may be queued or run at the same time: ums_group_spawn waits
     * until fewer are. 0: no limit.
     */
    size_t max_running;
    /**
     * 0 or UMS_GROUP_RESULTS.
     */
    uint32_t flags;
} ums_group_options;

/**
 * A function that a task of a group runs. A negative result is a failure. It must return, as an
 * ums_function must.
 */
typedef int (*ums_group_function)(void *arg);

/**
 * Called once when the request has ended, with the number of bytes (accept: the new descriptor),
 * or a negative errno (-ECANCELED: it was cancelled). It runs between two workers of the
 * scheduler, or before the submitting call returns. It may enqueue, submit, set events, and use
 * channels with the time limit 0. It must not wait.
 */
typedef void (*ums_routine)(void *arg, int64_t result);

/**
 * One of the things that ums_select waits for.
 */
typedef struct ums_arm {
    /**
     * UMS_ARM_...
     */
    uint32_t kind;
    /**
     * Set if this arm happens: 0, or the negative errno with which it failed. A channel that was
     * closed is -EPIPE.
     */
    int result;
    /**
     * The descriptor.
     */
    int fd;
    /**
     * The channel, task, event or semaphore.
     */
    void *object;
    /**
     * The pointer to send, the received pointer, or the task's result.
     */
    void *value;
} ums_arm;

/**
 * The limits of a server. Set `size` to sizeof(ums_serve_options), and all other fields to zero
 * for no limits. Connections beyond a limit are closed as soon as they are accepted.
 */
typedef struct ums_serve_options {
    /**
     * sizeof(ums_serve_options).
     */
    size_t size;
    /**
     * How many connections may be open.
     */
    size_t max_connections;
    /**
     * How many connections from one address, or from one IPv6 network of 64 bits, may be open.
     */
    size_t max_per_address;
    /**
     * How many connections in a second one address may make, on average.
     */
    uint32_t max_rate_per_address;
    /**
     * How many connections in a second all addresses together may make, on average.
     */
    uint32_t max_rate;
} ums_serve_options;

/**
 * Called on a worker for each connection, with its descriptor, which is in non-blocking mode. The
 * connection is closed when the function returns; it must not close the descriptor itself. If
 * there is unread input then, TCP resets the connection, and the client may lose what was written
 * last: call shutdown(fd, SHUT_WR), and read to the end for a limited time.
 */
typedef void (*ums_connection_function)(void *arg, int fd);

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
 * grace time, cancels the others, which have as long again to end, at least a second, and ends
 * every worker. `report` may be NULL. On a worker: -EDEADLK. A second call changes nothing; its
 * report says how many workers are left.
 */
int ums_node_shutdown(struct ums_node *node, uint64_t grace_ns, struct ums_shutdown_report *report);

/**
 * Like `ums_node_shutdown`, for a node that serves clients: first stops its servers, and cancels
 * tasks that wait in ums_accept, and those that begin such a wait later. All other tasks, also
 * those that read, write or connect, get the grace time. May take twice that time: tasks that are
 * cancelled after it have as long again to end, at least a second. After one second a line on
 * stderr says what the node waits for, unless UMS_NO_WARNINGS is set.
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
 * Creates a group without tasks, whose tasks will run on this node. NULL: the node of the calling
 * worker; on a plain thread: -EPERM. `options` may be NULL.
 */
int ums_group_new(struct ums_node *node,
                  const struct ums_group_options *options,
                  struct ums_group **group);

/**
 * Frees a group. NULL is allowed. -EBUSY: a task of it has not ended; see ums_group_wait.
 */
int ums_group_free(struct ums_group *group);

/**
 * Queues a task of the group; waits first while `max_running` tasks of it are queued or run. If
 * the function returns a negative number, the group's other tasks are cancelled. -ECANCELED: the
 * group or the caller's work request was cancelled, or a task of the group has failed. -EDEADLK:
 * the caller is a task of the group, and would wait. -EAGAIN: the work queue is full. -ESHUTDOWN:
 * the node accepts no more work.
 */
int ums_group_spawn(struct ums_group *group, ums_group_function function, void *arg);

/**
 * Waits for the next task of the group that ends, for at most this long, and returns 1: `arg` is
 * the argument with which it was spawned, and `result` what its function has returned, or
 * -ECANCELED or -ENODATA if it never ran; either may be NULL. Returns 0 if all tasks have ended
 * and were returned. The group must have UMS_GROUP_RESULTS, otherwise: -EINVAL. A cancellation of
 * the caller, -EBUSY and -EDEADLK are as for ums_group_wait.
 */
int ums_group_next(struct ums_group *group, uint64_t timeout_ns, void **arg, int *result);

/**
 * Waits until all tasks of the group have ended, for at most this long. Then stores the first
 * failure of a task in `failure`, which may be NULL: 0 if none has failed, -ECANCELED or -ENODATA
 * if a task never ran. If the caller's work request is cancelled, so are the tasks; with
 * UMS_FOREVER the wait then goes on until they have ended, otherwise it returns -ECANCELED.
 * -EBUSY: another caller waits for the group. -EDEADLK: the caller is a task of the group.
 */
int ums_group_wait(struct ums_group *group, uint64_t timeout_ns, int *failure);

/**
 * Cancels the tasks of the group, as ums_task_cancel does. No further task can be spawned in it.
 */
int ums_group_cancel(struct ums_group *group);

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
 * Calls a function in which no wait fails because the caller's work request was cancelled, and
 * ums_is_cancelled returns false. After it, waits fail again. It is for what must be finished once
 * it has begun. The function should not wait for long without a time limit, because
 * ums_node_shutdown and ums_node_drain wait for it. `result` may be NULL. On a plain thread and in
 * a completion routine, which are never cancelled, the function is only called.
 */
int ums_shield(ums_function function, void *arg, void **result);

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
 * Creates a reader-writer lock.
 */
int ums_rwlock_new(struct ums_rwlock **rwlock);

/**
 * Frees a reader-writer lock. NULL is allowed. -EBUSY: the lock is held.
 */
int ums_rwlock_free(struct ums_rwlock *rwlock);

/**
 * Locks for reading, waiting for at most this long. A reader that arrives while a writer waits
 * queues behind it, so do not lock twice. -EDEADLK: the caller has locked it for writing.
 */
int ums_rwlock_read(struct ums_rwlock *rwlock, uint64_t timeout_ns);

/**
 * Locks for writing, waiting for at most this long. Readers are only counted: a caller that has
 * locked for reading would wait for itself. -EDEADLK: the caller has locked it for writing.
 */
int ums_rwlock_write(struct ums_rwlock *rwlock, uint64_t timeout_ns);

/**
 * Unlocks what the caller has locked, for reading or for writing. -EPERM: the lock is free, or
 * another caller writes.
 */
int ums_rwlock_unlock(struct ums_rwlock *rwlock);

/**
 * Turns the caller's lock for writing into one for reading; no writer comes between. -EPERM: the
 * caller has not locked it for writing.
 */
int ums_rwlock_downgrade(struct ums_rwlock *rwlock);

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
 * Frees an event. NULL is allowed. -EBUSY: the event has waiters. A worker that the event has
 * woken may free it, also if `ums_event_set` has not returned yet.
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
 * Acquires one permit, waiting for at most this long. -ETIMEDOUT: none was free in that time; with
 * the limit 0, none is free now.
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
 * Creates a barrier for this many callers. -EINVAL: 0.
 */
int ums_barrier_new(size_t callers, struct ums_barrier **barrier);

/**
 * Frees a barrier. NULL is allowed. -EBUSY: a call of ums_barrier_wait has not returned yet.
 */
int ums_barrier_free(struct ums_barrier *barrier);

/**
 * Waits until as many callers have arrived as the barrier is for, for at most this long. Returns 1
 * for the caller that arrived last, and 0 for the others. Then the barrier can be used again. A
 * caller whose wait fails does not count.
 */
int ums_barrier_wait(struct ums_barrier *barrier, uint64_t timeout_ns);

/**
 * Creates a channel that holds up to `bound` pointers. With 0, a send waits until a receiver has
 * taken the pointer; with SIZE_MAX, no send waits.
 */
int ums_channel_new(size_t bound, struct ums_channel **channel);

/**
 * Frees a channel. NULL is allowed. Pointers that are still in it are forgotten, and what they
 * point at is not freed: to free it, close the channel first and receive until -EPIPE. -EBUSY:
 * a call that sends or receives has not returned yet.
 */
int ums_channel_free(struct ums_channel *channel);

/**
 * Sends a pointer, which may be NULL; waits for room for at most this long. If it fails, the
 * pointer was not sent. -ETIMEDOUT: there was no room in that time; with the limit 0, the channel
 * is full. -EPIPE: the channel was closed.
 */
int ums_channel_send(struct ums_channel *channel, void *value, uint64_t timeout_ns);

/**
 * Receives the pointer that was sent first; waits for one for at most this long. -ETIMEDOUT: none
 * came in that time; with the limit 0, the channel is empty. -EPIPE: the channel was closed, and
 * is empty.
 */
int ums_channel_recv(struct ums_channel *channel, uint64_t timeout_ns, void **value);

/**
 * Closes a channel: each further send fails with -EPIPE, and so do the sends that wait. The
 * pointers in the channel can still be received. A second call has no effect.
 */
int ums_channel_close(struct ums_channel *channel);

/**
 * Returns how many pointers the channel holds; 0 for a bad pointer.
 */
size_t ums_channel_len(const struct ums_channel *channel);

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
 * Waits until the descriptor is ready for one of the events, UMS_READABLE and UMS_WRITABLE
 * combined with |, for at most this long. Returns the event that has come, or both. Neither reads
 * nor writes: another caller may take the input first, so the descriptor should be in non-blocking
 * mode.
 */
int ums_wait_fd(int fd, uint32_t events, uint64_t timeout_ns);

/**
 * Reads, and waits until the read has completed; other workers run meanwhile. Returns the number
 * of bytes. Pipes and sockets must be in non-blocking mode (O_NONBLOCK): in blocking mode the call
 * may block its scheduler, and the time limit then has no effect. -ETIMEDOUT: nothing came in that
 * time; with the limit 0, there is nothing to read. -ECANCELED: the work request was cancelled,
 * and nothing was read.
 */
int64_t ums_read(int fd, void *buffer, size_t len, uint64_t offset, uint64_t timeout_ns);

/**
 * Writes, and waits until the write has completed; other workers run meanwhile. Returns the number
 * of bytes, which may be less than `len`. Pipes and sockets must be in non-blocking mode
 * (O_NONBLOCK): in blocking mode the call may block its scheduler, and the time limit then has no
 * effect. -ETIMEDOUT: there was no room in that time; with the limit 0, there is none. -ECANCELED:
 * the work request was cancelled, the write to a pipe or socket would have to wait, and nothing
 * was written. A cancellation does not end a write to a file.
 */
int64_t ums_write(int fd, const void *buffer, size_t len, uint64_t offset, uint64_t timeout_ns);

/**
 * Waits until everything that was written to the file is on the disk; with `metadata` also the
 * file's metadata. A cancellation does not end it.
 */
int ums_sync(int fd, bool metadata);

/**
 * Waits for a connection, and accepts it. Returns its descriptor, in non-blocking mode. The
 * listening socket must be in non-blocking mode, too, as for `ums_read`.
 */
int ums_accept(int fd, uint64_t timeout_ns);

/**
 * Connects a socket in non-blocking mode, and waits until it is connected.
 */
int ums_connect(int fd, const struct sockaddr *addr, socklen_t len, uint64_t timeout_ns);

/**
 * Waits for several things at once, for at most this long, and takes the first that is ready.
 * Nothing happens to the others. Returns the number of the arm that has happened, and sets its
 * `result` and `value`. `flags` is 0 or UMS_SELECT_BIASED. -EINVAL: no arm, or more than 256.
 * -EBUSY: another caller waits for a task of an arm. -EPERM: on a plain thread, a wait for a
 * descriptor.
 */
int ums_select(struct ums_arm *arms, size_t count, uint32_t flags, uint64_t timeout_ns);

/**
 * Accepts connections of a listening socket, TCP or Unix-domain, and calls the function for each
 * on a worker. `options` may be NULL. The server uses a duplicate of the descriptor; close yours,
 * so that the system refuses clients when the server has stopped. The socket may be in blocking
 * mode: the call sets O_NONBLOCK. ums_node_drain stops the
 * servers of its node, and gives their connections the grace time. -EINVAL: the socket does not
 * listen.
 */
int ums_serve(struct ums_node *node,
              int fd,
              const struct ums_serve_options *options,
              ums_connection_function function,
              void *arg,
              struct ums_server **server);

/**
 * Stops accepting connections. The functions that are running continue.
 */
int ums_server_stop(struct ums_server *server);

/**
 * Stops the server as ums_server_stop does, and frees it. NULL is allowed.
 */
int ums_server_free(struct ums_server *server);

/**
 * Returns how many connections are open; 0 for a bad pointer.
 */
size_t ums_server_connections(const struct ums_server *server);

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
 * Serves the node's statistics to other processes of the same user over a Unix-domain socket with
 * this path; `ums stats` and `ums top` read it. NULL: where these commands find it by the number
 * of the process. A second call replaces the socket. -EADDRINUSE: another process listens there.
 */
int ums_node_serve_stats(struct ums_node *node, const char *path);

/**
 * Sets what `ums stats` shows beside the program's name where a user must choose among several
 * processes, such as the address that it serves.
 */
int ums_node_describe(struct ums_node *node, const char *text);

/**
 * Frees a text. NULL is allowed.
 */
void ums_text_free(char *text);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UMS_H */
