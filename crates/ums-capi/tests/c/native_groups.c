/* Task groups: they end together, the first failure cancels the others, and every misuse. */
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
    IS(0, ums_group_new(node, &group));
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
    IS(0, ums_group_new(node, &group));
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
    IS(0, ums_group_new(node, &group));
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
    IS(0, ums_group_new(NULL, &own));
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
    IS(0, ums_group_new(node, &group));
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

static void *all(void *arg)
{
    all_end();
    the_first_failure_ends_it();
    cancelled();
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
    IS(-EPERM, ums_group_new(NULL, &group));
    IS(-EINVAL, ums_group_new(node, NULL));
    IS(0, ums_group_new(node, &group));
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
