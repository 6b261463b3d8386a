/* Reader-writer lock and barrier: who has them at the same time, every misuse, time limits and
 * cancellation; and what a woken worker may free. */
#include "check.h"

enum { TASKS = 12, ROUNDS = 30 };

static ums_rwlock *rwlock;
static ums_barrier *barrier;
static int readers, most_readers, writers, written, leaders, passed;

static void run_many(void *(*function)(void *), int count)
{
    ums_task *tasks[TASKS];
    for (long i = 0; i < count; i++)
        IS(0, ums_spawn(function, (void *)i, &tasks[i]));
    for (int i = 0; i < count; i++)
        IS(0, ums_task_join(tasks[i], UMS_FOREVER, NULL));
}

static void *read_and_write(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        if ((intptr_t)arg % 4) {
            IS(0, ums_rwlock_read(rwlock, UMS_FOREVER));
            readers++;
            CHECK(writers == 0);
            if (readers > most_readers)
                most_readers = readers;
            ums_yield();
            readers--;
        } else {
            IS(0, ums_rwlock_write(rwlock, UMS_FOREVER));
            CHECK(writers == 0 && readers == 0);
            writers++;
            ums_yield();
            writers--;
            written++;
        }
        IS(0, ums_rwlock_unlock(rwlock));
        ums_yield();
    }
    return NULL;
}

static void *beside_a_writer(void *arg)
{
    IS(-ETIMEDOUT, ums_rwlock_read(rwlock, 0));
    IS(-ETIMEDOUT, ums_rwlock_read(rwlock, MS));
    IS(-ETIMEDOUT, ums_rwlock_write(rwlock, 0));
    IS(-ETIMEDOUT, ums_rwlock_write(rwlock, MS));
    IS(-EPERM, ums_rwlock_unlock(rwlock));
    IS(-EPERM, ums_rwlock_downgrade(rwlock));
    return arg;
}

static void *beside_a_reader(void *arg)
{
    IS(0, ums_rwlock_read(rwlock, 0));
    IS(-EPERM, ums_rwlock_downgrade(rwlock));
    IS(-ETIMEDOUT, ums_rwlock_write(rwlock, MS));
    IS(0, ums_rwlock_unlock(rwlock));
    return arg;
}

static void *write_at_last(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)ums_rwlock_write(rwlock, UMS_FOREVER);
}

static void rwlocks(void)
{
    ums_task *task;
    void *result;
    readers = most_readers = writers = written = 0;
    run_many(read_and_write, TASKS);
    IS(TASKS / 4 * ROUNDS, written);
    CHECK(most_readers > 1);

    IS(-EPERM, ums_rwlock_unlock(rwlock));
    IS(0, ums_rwlock_write(rwlock, UMS_FOREVER));
    IS(-EDEADLK, ums_rwlock_write(rwlock, UMS_FOREVER));
    IS(-EDEADLK, ums_rwlock_read(rwlock, 0));
    IS(-EBUSY, ums_rwlock_free(rwlock));
    run_many(beside_a_writer, 1);
    IS(0, ums_rwlock_downgrade(rwlock));
    IS(-EBUSY, ums_rwlock_free(rwlock));
    run_many(beside_a_reader, 1);

    IS(0, ums_spawn(write_at_last, NULL, &task)); /* the caller still reads */
    IS(-ETIMEDOUT, ums_task_join(task, MS, NULL));
    IS(-ETIMEDOUT, ums_rwlock_read(rwlock, 0)); /* behind the writer that waits */
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(-ECANCELED, (intptr_t)result);
    IS(0, ums_rwlock_read(rwlock, 0));
    IS(0, ums_rwlock_unlock(rwlock));
    IS(0, ums_rwlock_unlock(rwlock));
    IS(-EPERM, ums_rwlock_unlock(rwlock));
}

static void *meet(void *arg)
{
    (void)arg;
    for (int round = 1; round <= ROUNDS; round++) {
        passed++;
        int is_leader = ums_barrier_wait(barrier, UMS_FOREVER);
        CHECK(is_leader == 0 || is_leader == 1);
        leaders += is_leader;
        CHECK(passed >= 3 * round); /* none continues before all have come */
        IS(0, ums_barrier_wait(barrier, UMS_FOREVER) & ~1);
    }
    return NULL;
}

static void *meet_once(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)ums_barrier_wait(barrier, UMS_FOREVER);
}

static void barriers(void)
{
    ums_task *task;
    void *result;
    leaders = passed = 0;
    run_many(meet, 3);
    IS(ROUNDS, leaders);

    IS(0, ums_spawn(meet_once, NULL, &task));
    IS(-ETIMEDOUT, ums_task_join(task, MS, NULL));
    IS(-EBUSY, ums_barrier_free(barrier));
    IS(-ETIMEDOUT, ums_barrier_wait(barrier, 0));
    IS(-ETIMEDOUT, ums_barrier_wait(barrier, MS)); /* those that gave up do not count */
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(-ECANCELED, (intptr_t)result);
}

static void *all(void *arg)
{
    rwlocks();
    barriers();
    return arg;
}

enum { EVENTS = 3000 };

static void *set_each(void *channel)
{
    void *event;
    while (ums_channel_recv(channel, UMS_FOREVER, &event) == 0)
        IS(0, ums_event_set(event));
    return NULL;
}

/* The call that has set the event runs on another scheduler, and may not have returned. */
static void *wait_and_free_each(void *channel)
{
    for (int i = 0; i < EVENTS; i++) {
        ums_event *event;
        IS(0, ums_event_new(false, false, &event));
        IS(0, ums_channel_send(channel, event, UMS_FOREVER));
        IS(0, ums_event_wait(event, UMS_FOREVER));
        IS(0, ums_event_free(event));
    }
    IS(0, ums_channel_close(channel));
    return NULL;
}

static void free_at_once(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 2);
    ums_channel *channel;
    ums_task *sets, *waits;
    IS(0, ums_channel_new(1, &channel));
    IS(0, ums_node_spawn_on(node, 0, set_each, channel, &sets));
    IS(0, ums_node_spawn_on(node, 1, wait_and_free_each, channel, &waits));
    IS(0, ums_task_join(waits, UMS_FOREVER, NULL));
    IS(0, ums_task_join(sets, UMS_FOREVER, NULL));
    IS(0, ums_node_free(node));
    IS(0, ums_channel_free(channel));
}

int main(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 1);
    ums_barrier *alone;
    IS(0, ums_rwlock_new(&rwlock));
    IS(0, ums_barrier_new(3, &barrier));
    IS(-EINVAL, ums_rwlock_new(NULL));
    IS(-EINVAL, ums_barrier_new(0, &alone));
    IS(-EINVAL, ums_barrier_new(1, NULL));
    IS(0, ums_barrier_new(1, &alone));
    IS(1, ums_barrier_wait(alone, 0));
    IS(0, ums_node_run(node, all, NULL, NULL));

    IS(0, ums_rwlock_read(rwlock, UMS_FOREVER)); /* a plain thread can wait too */
    IS(-ETIMEDOUT, ums_rwlock_write(rwlock, MS));
    IS(0, ums_rwlock_unlock(rwlock));
    IS(0, ums_rwlock_write(rwlock, UMS_FOREVER));
    IS(-EDEADLK, ums_rwlock_write(rwlock, MS));
    IS(0, ums_rwlock_unlock(rwlock));
    IS(-ETIMEDOUT, ums_barrier_wait(barrier, MS));

    IS(0, ums_node_free(node));
    IS(0, ums_rwlock_free(rwlock));
    IS(-EBADF, ums_rwlock_free(rwlock));
    IS(-EBADF, ums_rwlock_read((ums_rwlock *)(void *)barrier, 0));
    IS(0, ums_barrier_free(barrier));
    IS(0, ums_barrier_free(alone));
    IS(0, ums_rwlock_free(NULL));
    IS(0, ums_barrier_free(NULL));
    free_at_once(argc, argv);
    puts("ok");
    return 0;
}
