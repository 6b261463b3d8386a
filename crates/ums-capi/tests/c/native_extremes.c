/* Extreme sizes, counts and times: each is refused with an error, or has its literal meaning. A
 * wait without time ends by itself; one with all the time that there is lasts until it is woken,
 * after a millisecond. The test in native.rs compares the functions used here with the header. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

#define LENGTH(list) (sizeof(list) / sizeof *(list))

static const uint64_t over[] = { 0, 1 };
static const uint64_t endless[] = { UMS_FOREVER, UMS_FOREVER - 1, INT64_MAX,
                                    (uint64_t)INT64_MAX + 1 };
static const uint64_t nowhere[] = { (uint64_t)INT64_MAX + 1, UINT64_MAX - 1 };
static ums_options given;

/* A wait: `make` makes its object, `wake` ends the wait, and `unmake` frees the object. */
struct wait {
    const char *name;
    void (*make)(void);
    int64_t (*wait)(uint64_t timeout_ns);
    void (*wake)(void);
    void (*unmake)(void);
};

static atomic_int wakes;

static void *wake_soon(void *arg)
{
    const struct wait *w = arg;
    usleep(1000);
    atomic_store(&wakes, 1);
    w->wake();
    return NULL;
}

static void try_wait(const struct wait *w)
{
    fprintf(stderr, "%s\n", w->name);
    for (size_t i = 0; i < LENGTH(over); i++) {
        w->make();
        IS(-ETIMEDOUT, w->wait(over[i]));
        w->wake();
        w->unmake();
    }
    for (size_t i = 0; i < LENGTH(endless); i++) {
        pthread_t waker;
        w->make();
        atomic_store(&wakes, 0);
        CHECK(pthread_create(&waker, NULL, wake_soon, (void *)w) == 0);
        CHECK(w->wait(endless[i]) >= 0);
        CHECK(atomic_load(&wakes));
        CHECK(pthread_join(waker, NULL) == 0);
        w->unmake();
    }
}

static ums_node *node;
static ums_event *event;
static ums_mutex *mutex;
static ums_condvar *condvar;
static ums_semaphore *semaphore;
static ums_rwlock *rwlock;
static ums_barrier *barrier;
static ums_channel *channel;
static ums_group *group;
static ums_task *task;
static int ends[2];
static struct sockaddr_un address = { .sun_family = AF_UNIX };
static char byte[4096];

static void make_event(void) { IS(0, ums_event_new(true, false, &event)); }
static int64_t wait_event(uint64_t ns) { return ums_event_wait(event, ns); }
static void set_event(void) { IS(0, ums_event_set(event)); }
static void free_event(void) { IS(0, ums_event_free(event)); }

static void make_semaphore(void) { IS(0, ums_semaphore_new(0, &semaphore)); }
static int64_t acquire(uint64_t ns) { return ums_semaphore_acquire(semaphore, ns); }
static void release(void) { IS(0, ums_semaphore_release(semaphore, 1)); }
static void free_semaphore(void) { IS(0, ums_semaphore_free(semaphore)); }

static atomic_int has_waited;
static void make_condvar(void)
{
    IS(0, ums_mutex_new(&mutex));
    IS(0, ums_condvar_new(&condvar));
    atomic_store(&has_waited, 0);
}
static int64_t wait_condvar(uint64_t ns)
{
    IS(0, ums_mutex_lock(mutex, UMS_FOREVER));
    int result = ums_condvar_wait(condvar, mutex, ns);
    IS(0, ums_mutex_unlock(mutex));
    atomic_store(&has_waited, 1);
    return result;
}
static void notify(void)
{
    /* The wait may not have begun when this is called. */
    do {
        IS(0, ums_condvar_notify_all(condvar));
        usleep(1000);
    } while (!atomic_load(&has_waited));
}
static void free_condvar(void)
{
    IS(0, ums_condvar_free(condvar));
    IS(0, ums_mutex_free(mutex));
}

static void make_barrier(void)
{
    IS(0, ums_barrier_new(2, &barrier));
    atomic_store(&has_waited, 0);
}
static int64_t meet(uint64_t ns)
{
    int result = ums_barrier_wait(barrier, ns);
    atomic_store(&has_waited, 1);
    return result;
}
static void come(void)
{
    /* The wait may not have begun when this is called. */
    do {
        ums_barrier_wait(barrier, 0);
        usleep(1000);
    } while (!atomic_load(&has_waited));
}
static void free_barrier(void) { IS(0, ums_barrier_free(barrier)); }

/* A thread that holds both locks until it is told to release them. */
static pthread_t holder;
static atomic_int holds, may_release;
static void *hold(void *arg)
{
    (void)arg;
    IS(0, ums_mutex_lock(mutex, UMS_FOREVER));
    IS(0, ums_rwlock_write(rwlock, UMS_FOREVER));
    atomic_store(&holds, 1);
    while (!atomic_load(&may_release))
        usleep(100);
    IS(0, ums_rwlock_unlock(rwlock));
    IS(0, ums_mutex_unlock(mutex));
    return NULL;
}
static void make_held(void)
{
    IS(0, ums_mutex_new(&mutex));
    IS(0, ums_rwlock_new(&rwlock));
    atomic_store(&holds, 0);
    atomic_store(&may_release, 0);
    CHECK(pthread_create(&holder, NULL, hold, NULL) == 0);
    while (!atomic_load(&holds))
        usleep(100);
}
static int64_t lock_mutex(uint64_t ns)
{
    int result = ums_mutex_lock(mutex, ns);
    if (result == 0)
        IS(0, ums_mutex_unlock(mutex));
    return result;
}
static int64_t lock_to_read(uint64_t ns)
{
    int result = ums_rwlock_read(rwlock, ns);
    if (result == 0)
        IS(0, ums_rwlock_unlock(rwlock));
    return result;
}
static int64_t lock_to_write(uint64_t ns)
{
    int result = ums_rwlock_write(rwlock, ns);
    if (result == 0)
        IS(0, ums_rwlock_unlock(rwlock));
    return result;
}
static void let_go(void) { atomic_store(&may_release, 1); }
static void free_held(void)
{
    CHECK(pthread_join(holder, NULL) == 0);
    IS(0, ums_mutex_free(mutex));
    IS(0, ums_rwlock_free(rwlock));
}

static void make_channel(void) { IS(0, ums_channel_new(1, &channel)); }
static int64_t receive(uint64_t ns)
{
    void *value;
    return ums_channel_recv(channel, ns, &value);
}
static void send_one(void) { IS(0, ums_channel_send(channel, NULL, UMS_FOREVER)); }
static void free_channel(void) { IS(0, ums_channel_free(channel)); }
static void make_full_channel(void)
{
    make_channel();
    send_one();
}
static int64_t send_more(uint64_t ns) { return ums_channel_send(channel, NULL, ns); }
static void take_one(void)
{
    void *value;
    IS(0, ums_channel_recv(channel, UMS_FOREVER, &value));
}

static int64_t select_event(uint64_t ns)
{
    ums_arm arm = { .kind = UMS_ARM_EVENT, .object = event };
    return ums_select(&arm, 1, 0, ns);
}

static int until_set_in_group(void *arg)
{
    (void)arg;
    return ums_event_wait(event, UMS_FOREVER);
}
static void make_group(void)
{
    make_event();
    ums_group_options options = { sizeof options, SIZE_MAX, UMS_GROUP_RESULTS };
    IS(0, ums_group_new(node, &options, &group));
    IS(0, ums_group_spawn(group, until_set_in_group, NULL));
}
static int64_t next_of_group(uint64_t ns) { return ums_group_next(group, ns, NULL, NULL); }
static int64_t wait_group(uint64_t ns) { return ums_group_wait(group, ns, NULL); }
static void free_group(void)
{
    IS(0, ums_group_wait(group, UMS_FOREVER, NULL));
    IS(0, ums_group_free(group));
    free_event();
}

static void *until_set(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)ums_event_wait(event, UMS_FOREVER);
}
static void make_task(void)
{
    make_event();
    IS(0, ums_node_spawn(node, until_set, NULL, &task));
}
static int64_t join(uint64_t ns)
{
    int result = ums_task_join(task, ns, NULL);
    if (result == 0)
        task = NULL;
    return result;
}
static void free_task(void)
{
    if (task)
        IS(0, ums_task_join(task, UMS_FOREVER, NULL));
    free_event();
}

static void make_pipe(void) { IS(0, pipe2(ends, O_NONBLOCK | O_CLOEXEC)); }
static int64_t wait_pipe(uint64_t ns) { return ums_wait_fd(ends[0], UMS_READABLE, ns); }
static int64_t read_pipe(uint64_t ns) { return ums_read(ends[0], byte, 1, UMS_CURRENT, ns); }
static void write_pipe(void) { IS(1, write(ends[1], "x", 1)); }
static void close_both(void)
{
    close(ends[0]);
    close(ends[1]);
}
static void make_full(void)
{
    make_pipe();
    while (write(ends[1], byte, sizeof byte) > 0) {
    }
}
static int64_t fill_more(uint64_t ns) { return ums_write(ends[1], "x", 1, UMS_CURRENT, ns); }
static void drain(void)
{
    while (read(ends[0], byte, sizeof byte) > 0) {
    }
}

static void make_listener(void)
{
    unlink(address.sun_path);
    CHECK((ends[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) >= 0);
    CHECK((ends[1] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) >= 0);
    IS(0, bind(ends[0], (struct sockaddr *)&address, sizeof address));
    IS(0, listen(ends[0], 4));
}
static int64_t accept_one(uint64_t ns)
{
    int fd = ums_accept(ends[0], ns);
    if (fd >= 0)
        close(fd);
    return fd;
}
static void connect_one(void) { IS(0, connect(ends[1], (void *)&address, sizeof address)); }

static void connects(void)
{
    for (size_t i = 0; i < LENGTH(endless); i++) {
        make_listener();
        IS(0, ums_connect(ends[1], (void *)&address, sizeof address, endless[i]));
        close_both();
    }
    /* A connection within the computer need not wait. */
    for (size_t i = 0; i < LENGTH(over); i++) {
        make_listener();
        int result = ums_connect(ends[1], (void *)&address, sizeof address, over[i]);
        CHECK(result == 0 || result == -ETIMEDOUT);
        close_both();
    }
    make_listener();
    CHECK(ums_connect(ends[1], (void *)&address, 0, UMS_FOREVER) < 0);
    close_both();
}

static atomic_int told;
static int64_t answer;
static void tell(void *arg, int64_t result)
{
    (void)arg;
    answer = result;
    atomic_store(&told, 1);
}
static int64_t told_by(int submitted)
{
    CHECK(submitted >= 0);
    while (!atomic_load(&told))
        IS(0, ums_sleep(MS));
    atomic_store(&told, 0);
    return answer;
}

static void positions(void)
{
    char path[] = "/tmp/ums-extremes-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    unlink(path);
    IS(10, write(fd, "0123456789", 10));
    struct iovec parts[] = { { byte, 2 }, { byte + 2, 2 } };
    IS(3, ums_read(fd, byte, 3, 1, UMS_FOREVER));
    IS(0, ums_read(fd, byte, 0, 0, UMS_FOREVER));
    IS(0, ums_read(fd, byte, 4, INT64_MAX - 4, UMS_FOREVER));
    for (size_t i = 0; i < LENGTH(nowhere); i++) {
        CHECK(ums_read(fd, byte, 4, nowhere[i], UMS_FOREVER) < 0);
        CHECK(ums_write(fd, byte, 4, nowhere[i], UMS_FOREVER) < 0);
        CHECK(told_by(ums_submit_read(fd, byte, 4, nowhere[i], tell, NULL, NULL)) < 0);
        CHECK(told_by(ums_submit_write(fd, byte, 4, nowhere[i], tell, NULL, NULL)) < 0);
        CHECK(told_by(ums_submit_readv(fd, parts, 2, nowhere[i], tell, NULL, NULL)) < 0);
        CHECK(told_by(ums_submit_writev(fd, parts, 2, nowhere[i], tell, NULL, NULL)) < 0);
    }
    IS(-EINVAL, ums_submit_readv(fd, parts, SIZE_MAX, 0, tell, NULL, NULL));
    IS(-EINVAL, ums_submit_writev(fd, parts, SIZE_MAX, 0, tell, NULL, NULL));
    CHECK(ums_submit_connect(fd, (void *)&address, 0, tell, NULL, NULL) < 0 ||
          told_by(0) < 0);
    IS(10, lseek(fd, 0, SEEK_END));
    close(fd);
}

static void permits(void)
{
    const size_t most = SIZE_MAX / 2;
    const size_t good[] = { 0, 1, most }, bad[] = { most + 1, SIZE_MAX };
    for (size_t i = 0; i < LENGTH(good); i++) {
        IS(0, ums_semaphore_new(good[i], &semaphore));
        IS(good[i], ums_semaphore_available(semaphore));
        IS(-EOVERFLOW, ums_semaphore_release(semaphore, SIZE_MAX));
        IS(good[i], ums_semaphore_available(semaphore));
        IS(0, ums_semaphore_free(semaphore));
    }
    for (size_t i = 0; i < LENGTH(bad); i++)
        IS(-EOVERFLOW, ums_semaphore_new(bad[i], &semaphore));
}

static void sizes(void)
{
    ums_arm arm = { .kind = UMS_ARM_EVENT };
    void *value = NULL;
    IS(-EINVAL, ums_barrier_new(0, &barrier));
    IS(0, ums_barrier_new(SIZE_MAX, &barrier));
    IS(-ETIMEDOUT, ums_barrier_wait(barrier, 1));
    IS(0, ums_barrier_free(barrier));
    IS(0, ums_channel_new(0, &channel));
    IS(-ETIMEDOUT, ums_channel_send(channel, NULL, 1));
    IS(0, ums_channel_free(channel));
    IS(0, ums_channel_new(SIZE_MAX, &channel));
    for (intptr_t i = 0; i < 1000; i++)
        IS(0, ums_channel_send(channel, (void *)i, 0));
    for (intptr_t i = 0; i < 1000; i++) {
        IS(0, ums_channel_recv(channel, 0, &value));
        IS(i, (intptr_t)value);
    }
    IS(0, ums_channel_free(channel));
    IS(-EINVAL, ums_select(&arm, 0, 0, UMS_FOREVER));
    IS(-EINVAL, ums_select(&arm, SIZE_MAX, 0, UMS_FOREVER));
}

static void *both(void *arg)
{
    static const struct wait waits[] = {
        { "ums_event_wait", make_event, wait_event, set_event, free_event },
        { "ums_semaphore_acquire", make_semaphore, acquire, release, free_semaphore },
        { "ums_condvar_wait", make_condvar, wait_condvar, notify, free_condvar },
        { "ums_mutex_lock", make_held, lock_mutex, let_go, free_held },
        { "ums_rwlock_read", make_held, lock_to_read, let_go, free_held },
        { "ums_rwlock_write", make_held, lock_to_write, let_go, free_held },
        { "ums_barrier_wait", make_barrier, meet, come, free_barrier },
        { "ums_channel_recv", make_channel, receive, send_one, free_channel },
        { "ums_channel_send", make_full_channel, send_more, take_one, free_channel },
        { "ums_select", make_event, select_event, set_event, free_event },
        { "ums_group_wait", make_group, wait_group, set_event, free_group },
        { "ums_group_next", make_group, next_of_group, set_event, free_group },
        { "ums_wait_fd", make_pipe, wait_pipe, write_pipe, close_both },
        { "ums_read", make_pipe, read_pipe, write_pipe, close_both },
        { "ums_write", make_full, fill_more, drain, close_both },
        { "ums_accept", make_listener, accept_one, connect_one, close_both },
    };
    for (size_t i = 0; i < LENGTH(waits); i++)
        try_wait(&waits[i]);
    connects();
    positions();
    permits();
    sizes();
    for (size_t i = 0; i < LENGTH(over); i++)
        IS(0, ums_sleep(over[i]));
    return arg;
}

static atomic_bool begun;

static void *sleeps(void *arg)
{
    atomic_store(&begun, true);
    return (void *)(intptr_t)ums_sleep(*(const uint64_t *)arg);
}

static void *seven(void *arg)
{
    (void)arg;
    return (void *)7;
}

static void nodes(void)
{
    void *result;
    const size_t numbers[] = { 1, SIZE_MAX };
    for (size_t i = 0; i < LENGTH(numbers); i++) {
        IS(-EINVAL, ums_node_spawn_on(node, numbers[i], seven, NULL, NULL));
        IS(-EINVAL, ums_node_set_online(node, numbers[i], true));
        IS(-EINVAL, ums_node_set_online(node, numbers[i], false));
    }
    CHECK(ums_node_cancel(node, UINT64_MAX) != 0);
    CHECK(ums_node_spawn_hidden(node, "too many", SIZE_MAX, seven, NULL, NULL) < 0);
    IS(0, ums_node_spawn_hidden(node, "one", 1, seven, NULL, &task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    for (size_t i = 0; i < LENGTH(endless); i++) {
        atomic_store(&begun, false);
        IS(0, ums_node_spawn(node, sleeps, (void *)&endless[i], &task));
        while (!atomic_load(&begun)) /* else the cancellation may find it queued */
            usleep(1000);
        IS(-ETIMEDOUT, ums_task_join(task, MS, &result));
        IS(0, ums_task_cancel(task));
        int joined = ums_task_join(task, UMS_FOREVER, &result);
        CHECK(joined == -ECANCELED || (joined == 0 && (intptr_t)result == -ECANCELED));
    }
}

static void options(void)
{
    for (size_t field = 0; field < 18; field++) {
        ums_options o = given;
        ums_node *made = NULL;
        o.schedulers = 1;
        o.flags = field < 9 ? 0 : UMS_MONITOR;
        size_t *sizes[] = { &o.schedulers, &o.max_workers,  &o.stack_size,
                            &o.min_workers, &o.queue_limit, &o.preemptive_limit };
        uint64_t *times[] = { &o.idle_worker_timeout_ns, &o.idle_spin_ns,     &o.queue_timeout_ns,
                              &o.stall_ns,               &o.starved_ns,       &o.non_yield_ns,
                              &o.cancel_after_ns,        &o.no_workers_ns,    &o.not_picked_up_ns,
                              &o.all_stuck_ns,           &o.deadlock_ns,      &o.repeat_ns };
        if (field < 6)
            *sizes[field] = SIZE_MAX;
        else
            *times[field - 6] = UINT64_MAX;
        int result = ums_node_new(&o, &made);
        if (field < 3) { /* no process can have so many, or so much */
            CHECK(result < 0 && strlen(ums_last_error()) > 20);
            continue;
        }
        IS(0, result);
        void *seen;
        IS(0, ums_node_run(made, seven, NULL, &seen));
        CHECK(seen == (void *)7);
        uint64_t grace = field == 3 ? 0 : endless[field % 4];
        IS(0, field % 2 ? ums_node_shutdown(made, grace, NULL) : ums_node_drain(made, grace, NULL));
        IS(0, ums_node_free(made));
    }
}

int main(int argc, char **argv)
{
    void *result;
    given = options_of(argc, argv);
    snprintf(address.sun_path, sizeof address.sun_path, "/tmp/ums-extremes-%d", (int)getpid());
    node = node_of(argc, argv, 1);
    fprintf(stderr, "on a plain thread\n");
    both(NULL);
    static const struct wait task_join = { "ums_task_join", make_task, join, set_event, free_task };
    try_wait(&task_join);
    nodes();
    fprintf(stderr, "on a worker\n");
    IS(0, ums_node_run(node, both, NULL, &result));
    options();
    unlink(address.sun_path);
    IS(0, ums_node_shutdown(node, UMS_FOREVER, NULL));
    IS(0, ums_node_free(node));
    puts("ok");
    return 0;
}
