/* Nodes, tasks and users, and the error of every misuse. */
#include <stdatomic.h>

#include "check.h"

static void *add_one(void *arg)
{
    return (char *)arg + 1;
}

static char order[8];
static atomic_int at;

static void *write_own_letter(void *arg)
{
    for (int i = 0; i < 3; i++) {
        order[atomic_fetch_add(&at, 1)] = *(char *)arg;
        ums_yield();
    }
    return NULL;
}

static void *take_turns(void *arg)
{
    ums_task *a, *b;
    (void)arg;
    IS(0, ums_scheduler_id());
    IS(0, ums_spawn(write_own_letter, "a", &a));
    IS(0, ums_spawn(write_own_letter, "b", &b));
    IS(0, ums_task_join(a, UMS_FOREVER, NULL));
    IS(0, ums_task_join(b, UMS_FOREVER, NULL));
    CHECK(strcmp(order, "ababab") == 0);
    /* A worker cannot wait for its own end. */
    IS(0, ums_spawn(add_one, NULL, NULL));
    return NULL;
}

static void *sleep_long(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)ums_sleep(600000 * MS);
}

static void *loop_until_cancelled(void *arg)
{
    int code;
    atomic_store((atomic_int *)arg, 1);
    while ((code = ums_checkpoint()) == 0)
        ums_sleep(MS / 10);
    CHECK(ums_is_cancelled());
    return (void *)(intptr_t)code;
}

static void *free_own_node(void *arg)
{
    IS(-EDEADLK, ums_node_shutdown(arg, 0, NULL));
    return (void *)(intptr_t)ums_node_free(arg);
}

static void *call_outside(void *arg)
{
    void *result = NULL;
    IS(0, ums_go_preemptive("PREEMPTIVE_TEST", add_one, arg, &result));
    IS(0, ums_go_preemptive(NULL, add_one, result, &result));
    return result;
}

static void tasks(ums_node *node)
{
    ums_task *task;
    void *result = NULL;
    atomic_int begun = 0;

    IS(0, ums_node_run(node, add_one, (void *)41, &result));
    IS(42, (intptr_t)result);
    IS(0, ums_node_run(node, call_outside, (void *)40, &result));
    IS(42, (intptr_t)result);

    IS(0, ums_node_spawn(node, sleep_long, NULL, &task));
    CHECK(ums_task_request_id(task) != 0);
    CHECK(!ums_task_is_finished(task));
    IS(-ETIMEDOUT, ums_task_join(task, MS, &result));
    IS(0, ums_task_cancel(task));
    /* The task never began, or the cancellation ended its sleep. */
    int code = ums_task_join(task, UMS_FOREVER, &result);
    CHECK(code == -ENODATA || (code == 0 && (intptr_t)result == -ECANCELED));
    IS(-EBADF, ums_task_join(task, UMS_FOREVER, &result));
    IS(-EBADF, ums_task_detach(task));

    IS(0, ums_node_spawn_on(node, 0, loop_until_cancelled, &begun, &task));
    while (!atomic_load(&begun))
        ums_yield();
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, 60000 * MS, &result));
    IS(-ECANCELED, (intptr_t)result);

    IS(0, ums_node_spawn_hidden(node, "backup", 2, add_one, NULL, &task));
    IS(0, ums_task_detach(task));
    IS(0, ums_node_run(node, free_own_node, node, &result));
    IS(-EDEADLK, (intptr_t)result);
}

static void users(ums_node *node)
{
    ums_user *user;
    ums_task *task;
    void *result = NULL;

    IS(0, ums_user_new(node, &user));
    CHECK(ums_user_id(user) != 0);
    CHECK(ums_user_scheduler(user) >= 0);
    IS(0, ums_user_enqueue(user, add_one, (void *)6, &task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(7, (intptr_t)result);
    IS(-EPERM, ums_user_release(user));
    IS(0, ums_user_hold(user));
    IS(0, ums_user_release(user));
    IS(-ESRCH, ums_user_cancel(user));
    CHECK(!ums_user_is_busy(user));
    IS(0, ums_user_enqueue(user, sleep_long, NULL, &task));
    CHECK(ums_user_is_busy(user));
    IS(0, ums_node_cancel(node, ums_user_id(user)));
    int code = ums_task_join(task, UMS_FOREVER, &result);
    CHECK(code == -ENODATA || (code == 0 && (intptr_t)result == -ECANCELED));
    IS(0, ums_user_free(user));
    IS(-EBADF, ums_user_free(user));
    IS(-EBADF, ums_user_enqueue(user, add_one, NULL, NULL));
    IS(0, ums_user_id(user));
}

static void misuse(ums_node *node)
{
    ums_options options;
    ums_node *none = NULL;
    ums_event *event;

    memset(&options, 0, sizeof options);
    IS(-EINVAL, ums_node_new(&options, &none)); /* no size */
    options.size = sizeof options;
    options.schedulers = 5000;
    IS(-EINVAL, ums_node_new(&options, &none));
    CHECK(strstr(ums_last_error(), "5000") != NULL);
    options.schedulers = 2;
    options.max_workers = 1;
    IS(-EINVAL, ums_node_new(&options, &none));
    IS(-EINVAL, ums_node_new(NULL, NULL));
    CHECK(none == NULL);

    IS(-EINVAL, ums_node_run(node, NULL, NULL, NULL));
    IS(-EINVAL, ums_node_run(NULL, add_one, NULL, NULL));
    IS(-EINVAL, ums_node_spawn_on(node, 99, add_one, NULL, NULL));
    IS(-EINVAL, ums_node_spawn_hidden(node, NULL, 0, add_one, NULL, NULL));
    IS(-EPERM, ums_spawn(add_one, NULL, NULL)); /* a plain thread */
    IS(-EPERM, ums_scheduler_id());
    CHECK(!ums_is_worker());
    IS(-EINVAL, ums_task_join(NULL, 0, NULL));
    IS(-EINVAL, ums_user_new(node, NULL));
    IS(0, ums_node_free(NULL));
    IS(0, ums_user_free(NULL));

    /* A pointer to the wrong kind of object. */
    IS(0, ums_event_new(true, false, &event));
    IS(-EBADF, ums_node_run((ums_node *)event, add_one, NULL, NULL));
    IS(-EBADF, ums_mutex_lock((ums_mutex *)event, 0));
    IS(0, ums_event_free(event));
    IS(-EBADF, ums_event_set(event));

    IS(0, ums_node_scheduler_count(NULL));
    if (ums_node_scheduler_count(node) == 1)
        IS(-EBUSY, ums_node_set_online(node, 0, false));
    IS(-EINVAL, ums_node_set_online(node, 77, false));
}

int main(int argc, char **argv)
{
    ums_shutdown_report report;
    ums_node *node = node_of(argc, argv, 1);

    CHECK(ums_version() >= 0x000100);
    IS(1, ums_node_scheduler_count(node));
    IS(0, ums_node_run(node, take_turns, NULL, NULL));
    tasks(node);
    users(node);
    misuse(node);
    IS(0, ums_node_shutdown(node, 5000 * MS, &report));
    IS(0, report.left);
    IS(-ESHUTDOWN, ums_node_run(node, add_one, NULL, NULL));
    IS(0, ums_node_free(node));
    IS(-EBADF, ums_node_free(node));

    node = node_of(argc, argv, 2);
    IS(2, ums_node_scheduler_count(node));
    IS(0, ums_node_set_online(node, 0, false));
    IS(-EBUSY, ums_node_set_online(node, 1, false));
    IS(0, ums_node_set_online(node, 0, true));
    tasks(node);
    users(node);
    IS(0, ums_node_free(node));
    puts("ok");
    return 0;
}
