/* Task groups: they end together, the first failure cancels the others, few run at a time, each
 * result comes once, and every misuse. */
#include <stdatomic.h>

#include "check.h"

static ums_node *node;
static ums_group *group;
static ums_event *event;
static atomic_int begun, ended;

static int add(void *arg)
{
    ums_yield();
    atomic_fetch_add(&ended, (int)(intptr_t)arg);
    return (int)(intptr_t)arg;
}

static int sleep_long(void *arg)
{
    (void)arg;
    atomic_fetch_add(&begun, 1);
    int code = ums_sleep(600000 * MS);
    atomic_fetch_add(&ended, 1);
    return code;
}

static int fail(void *arg)
{
    IS(0, ums_sleep(MS));
    return (int)(intptr_t)arg;
}

static int wait_for_event(void *arg)
{
    (void)arg;
    return ums_event_wait(event, UMS_FOREVER);
}

static int wait_for_own_group(void *arg)
{
    IS(-EDEADLK, ums_group_wait(arg, UMS_FOREVER, NULL));
    return 0;
}

static void all_end(void)
{
    int failure = 1;
    atomic_store(&ended, 0);
    IS(0, ums_group_new(node, NULL, &group));
    IS(0, ums_group_wait(group, 0, &failure)); /* there is no task */
    IS(0, failure);
    for (intptr_t i = 1; i <= 1000; i++)
        IS(0, ums_group_spawn(group, add, (void *)i));
    IS(0, ums_group_wait(group, UMS_FOREVER, &failure));
    IS(0, failure);
    IS(500500, atomic_load(&ended));
    IS(0, ums_group_spawn(group, wait_for_own_group, group)); /* it can be used again */
    IS(0, ums_group_wait(group, UMS_FOREVER, NULL));
    IS(0, ums_group_free(group));
    IS(-EBADF, ums_group_spawn(group, add, NULL));
}

static void the_first_failure_ends_it(void)
{
    int failure = 0;
    IS(0, ums_group_new(node, NULL, &group));
    for (int i = 0; i < 10; i++)
        IS(0, ums_group_spawn(group, sleep_long, NULL));
    IS(0, ums_group_spawn(group, fail, (void *)-ENOENT));
    IS(0, ums_group_wait(group, UMS_FOREVER, &failure));
    IS(-ENOENT, failure);
    IS(-ECANCELED, ums_group_spawn(group, add, NULL));
    IS(0, ums_group_free(group));
}

static void cancelled(void)
{
    int failure = 0;
    atomic_store(&begun, 0);
    IS(0, ums_group_new(node, NULL, &group));
    for (int i = 0; i < 10; i++)
        IS(0, ums_group_spawn(group, sleep_long, NULL));
    IS(-ETIMEDOUT, ums_group_wait(group, 0, &failure));
    IS(-ETIMEDOUT, ums_group_wait(group, MS, &failure));
    IS(-EBUSY, ums_group_free(group)); /* its tasks have not ended */
    IS(0, ums_group_cancel(group));
    IS(0, ums_group_wait(group, UMS_FOREVER, &failure));
    IS(-ECANCELED, failure);
    IS(0, ums_group_free(group));
}

/* The request that waits is cancelled: so are the tasks, and the wait lasts until they have ended. */
static void *own_a_group(void *arg)
{
    ums_group *own;
    int failure = 0;
    atomic_store(&begun, 0);
    atomic_store(&ended, 0);
    IS(0, ums_group_new(NULL, NULL, &own));
    for (int i = 0; i < 10; i++)
        IS(0, ums_group_spawn(own, sleep_long, NULL));
    while (atomic_load(&begun) < 10)
        IS(0, ums_sleep(MS));
    atomic_fetch_add(&begun, 1);
    IS(0, ums_group_wait(own, UMS_FOREVER, &failure));
    CHECK(ums_is_cancelled());
    IS(-ECANCELED, failure);
    IS(10, atomic_load(&ended));
    IS(0, ums_group_free(own));
    return arg;
}

static void *wait_for_the_group(void *arg)
{
    int code;
    (void)arg;
    do /* the other caller looks now and then */
        code = ums_group_wait(group, 600000 * MS, NULL);
    while (code == -EBUSY);
    return (void *)(intptr_t)code;
}

static void its_caller_is_cancelled(void)
{
    ums_task *task;
    void *result;
    IS(0, ums_node_spawn(node, own_a_group, NULL, &task));
    while (atomic_load(&begun) < 11)
        IS(0, ums_sleep(MS));
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, NULL));

    /* With a time limit the wait itself ends. */
    IS(0, ums_group_new(node, NULL, &group));
    IS(0, ums_group_spawn(group, wait_for_event, NULL));
    IS(0, ums_node_spawn(node, wait_for_the_group, NULL, &task));
    while (ums_group_wait(group, 0, NULL) != -EBUSY) /* until the task waits */
        IS(0, ums_sleep(MS));
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(-ECANCELED, (intptr_t)result);
    IS(0, ums_group_wait(group, UMS_FOREVER, NULL)); /* the tasks were cancelled, too */
    IS(0, ums_group_free(group));
}

static atomic_int running, most;

static int one_of_few(void *arg)
{
    int now = atomic_fetch_add(&running, 1) + 1, before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) {
    }
    IS(0, ums_sleep(MS));
    atomic_fetch_sub(&running, 1);
    return (int)(intptr_t)arg;
}

static void *few_at_a_time_with_results(void *arg)
{
    ums_group_options options = { sizeof options, 3, UMS_GROUP_RESULTS };
    int sum = 0, result = -1, left;
    void *which = NULL;
    atomic_store(&most, 0);
    IS(0, ums_group_new(node, &options, &group));
    IS(0, ums_group_next(group, UMS_FOREVER, &which, &result)); /* there is no task */
    IS(-1, result);
    for (intptr_t i = 1; i <= 20; i++)
        IS(0, ums_group_spawn(group, one_of_few, (void *)i));
    IS(1, ums_group_next(group, UMS_FOREVER, NULL, NULL));
    IS(0, ums_group_spawn(group, one_of_few, NULL));
    for (left = 20; ums_group_next(group, UMS_FOREVER, &which, &result) == 1; left--) {
        IS((intptr_t)which, result);
        sum += result;
    }
    IS(0, left);
    CHECK(sum >= 210 - 20 && sum < 210); /* the first was not looked at */
    CHECK(atomic_load(&most) <= 3);
    IS(0, ums_group_free(group));
    return arg;
}

static void results_of_a_failure(void)
{
    ums_group_options options = { sizeof options, 0, UMS_GROUP_RESULTS };
    int result = 0, failure = 0;
    void *which = NULL;
    IS(0, ums_group_new(node, &options, &group));
    for (int i = 0; i < 5; i++)
        IS(0, ums_group_spawn(group, sleep_long, NULL));
    IS(-ETIMEDOUT, ums_group_next(group, 0, &which, &result));
    IS(-ETIMEDOUT, ums_group_next(group, MS, &which, &result));
    IS(0, ums_group_spawn(group, fail, (void *)-ENOENT));
    IS(1, ums_group_next(group, UMS_FOREVER, &which, &result));
    IS(-ENOENT, result);
    IS(-ENOENT, (intptr_t)which);
    IS(0, ums_group_wait(group, UMS_FOREVER, &failure)); /* keeps the results */
    IS(-ENOENT, failure);
    for (int i = 0; i < 5; i++) {
        IS(1, ums_group_next(group, 0, &which, &result));
        IS(-ECANCELED, result);
    }
    IS(0, ums_group_next(group, 0, &which, &result));
    IS(0, ums_group_free(group));
}

static int wait_in_own_group(void *arg)
{
    IS(-EDEADLK, ums_group_spawn(arg, add, NULL)); /* it has the only place itself */
    IS(-EDEADLK, ums_group_next(arg, UMS_FOREVER, NULL, NULL));
    return 0;
}

static void *wait_for_the_next(void *arg)
{
    int code, count = 0;
    do {
        code = ums_group_next(group, UMS_FOREVER, NULL, NULL);
        count += code == 1;
    } while (code == 1 || code == -EBUSY);
    IS(0, code);
    CHECK(ums_is_cancelled());
    (void)arg;
    return (void *)(intptr_t)count;
}

static void *wait_for_a_place(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)ums_group_spawn(group, add, NULL);
}

static void options_and_cancellation(void)
{
    ums_group_options options = { sizeof options, 1, UMS_GROUP_RESULTS };
    ums_task *task;
    void *result;
    IS(0, ums_group_new(node, &options, &group));
    IS(0, ums_group_spawn(group, wait_in_own_group, group));
    IS(1, ums_group_next(group, UMS_FOREVER, NULL, NULL));

    /* A caller that waits for a place is cancelled, and the group goes on. */
    atomic_store(&begun, 0);
    IS(0, ums_group_spawn(group, sleep_long, NULL));
    IS(0, ums_node_spawn(node, wait_for_a_place, NULL, &task));
    IS(-ETIMEDOUT, ums_task_join(task, MS, NULL));
    IS(0, ums_task_cancel(task));
    int joined = ums_task_join(task, UMS_FOREVER, &result);
    CHECK(joined == -ENODATA || (joined == 0 && (intptr_t)result == -ECANCELED));
    IS(-ETIMEDOUT, ums_group_next(group, 0, NULL, NULL));

    /* A cancellation of the caller of `next` is passed on to the tasks. */
    IS(0, ums_node_spawn(node, wait_for_the_next, NULL, &task));
    while (ums_group_wait(group, 0, NULL) != -EBUSY) /* until the task waits */
        IS(0, ums_sleep(MS));
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(1, (intptr_t)result);
    IS(0, ums_group_free(group));

    /* A task that waits for a place hears the failure that ends the group. */
    options.flags = 0;
    IS(0, ums_group_new(node, &options, &group));
    IS(-EINVAL, ums_group_next(group, 0, NULL, NULL)); /* it keeps no results */
    IS(0, ums_group_spawn(group, fail, (void *)-ENOENT));
    IS(-ECANCELED, ums_group_spawn(group, add, NULL));
    IS(0, ums_group_wait(group, UMS_FOREVER, NULL));
    IS(0, ums_group_free(group));
    options.flags = 2;
    IS(-EINVAL, ums_group_new(node, &options, &group));
    options.size = 1;
    IS(-EINVAL, ums_group_new(node, &options, &group));
}

/* The only worker waits for its tasks, which get further ones. */
static void on_one_worker(int argc, char **argv)
{
    ums_options options = options_of(argc, argv);
    ums_node *other = node;
    options.schedulers = options.max_workers = 1;
    IS(0, ums_node_new(&options, &node));
    IS(0, ums_node_run(node, few_at_a_time_with_results, NULL, NULL));
    IS(0, ums_node_free(node));
    node = other;
}

static void *all(void *arg)
{
    all_end();
    the_first_failure_ends_it();
    cancelled();
    few_at_a_time_with_results(NULL);
    results_of_a_failure();
    options_and_cancellation();
    atomic_store(&begun, 0);
    its_caller_is_cancelled();
    return arg;
}

int main(int argc, char **argv)
{
    node = node_of(argc, argv, 2);
    IS(0, ums_event_new(true, false, &event));
    IS(0, ums_node_run(node, all, NULL, NULL));
    all(NULL); /* on a plain thread */
    on_one_worker(argc, argv);
    IS(-EPERM, ums_group_new(NULL, NULL, &group));
    IS(-EINVAL, ums_group_new(node, NULL, NULL));
    IS(0, ums_group_new(node, NULL, &group));
    IS(-EINVAL, ums_group_spawn(group, NULL, NULL));
    IS(0, ums_node_shutdown(node, MS, NULL));
    IS(-ESHUTDOWN, ums_group_spawn(group, add, NULL));
    IS(0, ums_node_free(node));
    IS(0, ums_group_free(group));
    IS(0, ums_group_free(NULL));
    IS(0, ums_event_free(event));
    puts("ok");
    return 0;
}
