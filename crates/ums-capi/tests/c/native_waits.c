/* Mutex, condition variable, event and semaphore: waits of workers, with time limits and with
 * cancellation. */
#include "check.h"

enum { TASKS = 20, ROUNDS = 50 };

static ums_mutex *mutex;
static ums_condvar *condvar;
static ums_event *event;
static ums_semaphore *semaphore;
static long counter, taken, made;

static void *count_under_the_mutex(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        IS(0, ums_mutex_lock(mutex, UMS_FOREVER));
        long before = counter;
        ums_yield();
        counter = before + 1;
        IS(0, ums_mutex_unlock(mutex));
    }
    return NULL;
}

static void *consume(void *arg)
{
    (void)arg;
    IS(0, ums_mutex_lock(mutex, UMS_FOREVER));
    while (made == taken)
        IS(0, ums_condvar_wait(condvar, mutex, UMS_FOREVER));
    taken++;
    IS(0, ums_mutex_unlock(mutex));
    return NULL;
}

static void *produce(void *arg)
{
    (void)arg;
    for (int i = 0; i < TASKS; i++) {
        IS(0, ums_mutex_lock(mutex, UMS_FOREVER));
        made++;
        IS(0, ums_mutex_unlock(mutex));
        IS(0, ums_condvar_notify_one(condvar));
        ums_yield();
    }
    return NULL;
}

static void run_many(void *(*function)(void *), void *(*other)(void *))
{
    ums_task *tasks[TASKS], *one = NULL;
    for (int i = 0; i < TASKS; i++)
        IS(0, ums_spawn(function, NULL, &tasks[i]));
    if (other)
        IS(0, ums_spawn(other, NULL, &one));
    for (int i = 0; i < TASKS; i++)
        IS(0, ums_task_join(tasks[i], UMS_FOREVER, NULL));
    if (one)
        IS(0, ums_task_join(one, UMS_FOREVER, NULL));
}

static int waiting;

static void *wait_for_event(void *arg)
{
    (void)arg;
    waiting++; /* one scheduler: no other worker runs until the wait parks this one */
    return (void *)(intptr_t)ums_event_wait(event, UMS_FOREVER);
}

static void *lock_it(void *arg)
{
    (void)arg;
    IS(-ETIMEDOUT, ums_mutex_lock(mutex, 0));
    IS(-ETIMEDOUT, ums_mutex_lock(mutex, MS));
    IS(-EPERM, ums_mutex_unlock(mutex));
    IS(-EPERM, ums_condvar_wait(condvar, mutex, 0));
    return NULL;
}

static void mutexes(void)
{
    ums_task *task;
    counter = taken = made = 0;
    run_many(count_under_the_mutex, NULL);
    IS(TASKS * ROUNDS, counter);
    run_many(consume, produce);
    IS(TASKS, taken);

    IS(0, ums_mutex_lock(mutex, 0));
    IS(-EDEADLK, ums_mutex_lock(mutex, UMS_FOREVER));
    IS(-EBUSY, ums_mutex_free(mutex));
    IS(0, ums_spawn(lock_it, NULL, &task));
    IS(0, ums_task_join(task, UMS_FOREVER, NULL));
    IS(-ETIMEDOUT, ums_condvar_wait(condvar, mutex, MS));
    IS(0, ums_mutex_unlock(mutex)); /* the wait has locked it again */
    IS(-EPERM, ums_mutex_unlock(mutex));
    IS(0, ums_condvar_notify_one(condvar)); /* there is no waiter, so it is lost, as documented */
    IS(0, ums_condvar_notify_all(condvar));
}

static void events(void)
{
    ums_task *first, *second;
    void *result;

    IS(-ETIMEDOUT, ums_event_wait(event, 0));
    IS(-ETIMEDOUT, ums_event_wait(event, MS));
    IS(0, ums_spawn(wait_for_event, NULL, &first));
    IS(0, ums_spawn(wait_for_event, NULL, &second));
    while (waiting < 2)
        ums_yield();
    IS(-EBUSY, ums_event_free(event));
    IS(0, ums_event_set(event)); /* automatic: one waiter continues */
    while (!ums_task_is_finished(first) && !ums_task_is_finished(second))
        ums_yield();
    CHECK(!ums_task_is_finished(first) || !ums_task_is_finished(second));
    CHECK(!ums_event_is_set(event));
    IS(0, ums_task_cancel(first)); /* one of them has ended already, which is harmless */
    IS(0, ums_task_cancel(second));
    int sum = 0;
    IS(0, ums_task_join(first, UMS_FOREVER, &result));
    sum += (int)(intptr_t)result;
    IS(0, ums_task_join(second, UMS_FOREVER, &result));
    sum += (int)(intptr_t)result;
    IS(-ECANCELED, sum);
    IS(0, ums_event_set(event));
    IS(1, ums_event_reset(event));
    IS(0, ums_event_reset(event));
}

static void semaphores(void)
{
    IS(2, ums_semaphore_available(semaphore));
    IS(0, ums_semaphore_acquire(semaphore, 0));
    IS(0, ums_semaphore_acquire(semaphore, UMS_FOREVER));
    IS(-ETIMEDOUT, ums_semaphore_acquire(semaphore, 0));
    IS(-ETIMEDOUT, ums_semaphore_acquire(semaphore, MS));
    IS(0, ums_semaphore_release(semaphore, 2));
    IS(-EOVERFLOW, ums_semaphore_release(semaphore, SIZE_MAX));
    IS(2, ums_semaphore_available(semaphore));
}

static void *all(void *arg)
{
    (void)arg;
    mutexes();
    events();
    semaphores();
    return NULL;
}

int main(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 1);
    IS(0, ums_mutex_new(&mutex));
    IS(0, ums_condvar_new(&condvar));
    IS(0, ums_event_new(false, false, &event));
    IS(0, ums_semaphore_new(2, &semaphore));
    IS(-EOVERFLOW, ums_semaphore_new(SIZE_MAX, &semaphore));
    IS(-EINVAL, ums_mutex_new(NULL));
    IS(0, ums_node_run(node, all, NULL, NULL));
    semaphores(); /* a plain thread can wait too */
    IS(0, ums_mutex_lock(mutex, UMS_FOREVER));
    IS(0, ums_mutex_unlock(mutex));
    IS(0, ums_node_free(node));
    IS(0, ums_mutex_free(mutex));
    IS(0, ums_condvar_free(condvar));
    IS(0, ums_event_free(event));
    IS(0, ums_semaphore_free(semaphore));
    IS(-EBADF, ums_semaphore_free(semaphore));
    IS(0, ums_mutex_free(NULL));
    puts("ok");
    return 0;
}
