/* The monitor with its reports, the detection of blocked workers, and the statistics socket. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static atomic_int reported, slept;

static void on_report(void *arg, const ums_report *report)
{
    CHECK(strcmp(arg, "the argument") == 0);
    CHECK(report->size == sizeof *report);
    if (strcmp(report->condition, "STALL") != 0)
        return;
    CHECK(strstr(report->text, "STALL") != NULL && strlen(report->text) > 20);
    CHECK(report->lasted_ns >= 20 * MS && report->scheduler == 0 && report->request != 0);
    atomic_store(&reported, 1);
}

static void *spin_until_reported(void *arg)
{
    while (!atomic_load(&reported)) {
    }
    return arg;
}

/* A worker that does not yield is reported to the program, and not on stderr. */
static void monitor(ums_options options)
{
    char path[] = "/tmp/ums-options-XXXXXX";
    int log = mkstemp(path), err = dup(2);
    ums_node *node;
    options.stall_ns = 20 * MS;
    options.starved_ns = 20 * MS;
    options.on_report = on_report;
    options.report_arg = "the argument";
    IS(-EINVAL, ums_node_new(&options, &node)); /* without UMS_MONITOR */
    CHECK(strstr(ums_last_error(), "UMS_MONITOR") != NULL);
    options.flags = UMS_MONITOR | UMS_NO_REPORTS;
    IS(0, ums_node_new(&options, &node));
    CHECK(log >= 0 && err >= 0 && unlink(path) == 0 && dup2(log, 2) == 2);
    IS(0, ums_node_run(node, spin_until_reported, NULL, NULL));
    CHECK(dup2(err, 2) == 2);
    IS(0, lseek(log, 0, SEEK_END));
    IS(0, ums_node_free(node));
    close(log);
    close(err);
}

static ums_mutex *one, *two;

static void *lock_both(void *arg)
{
    ums_mutex *first = arg, *second = first == one ? two : one;
    int code;
    IS(0, ums_mutex_lock(first, UMS_FOREVER));
    IS(0, ums_sleep(5 * MS));
    code = ums_mutex_lock(second, UMS_FOREVER);
    if (code == 0)
        IS(0, ums_mutex_unlock(second));
    IS(0, ums_mutex_unlock(first));
    return (void *)(intptr_t)code;
}

/* Two workers that wait for each other: one wait fails. */
static void *deadlock(void *arg)
{
    ums_task *tasks[2];
    void *results[2];
    IS(0, ums_mutex_new(&one));
    IS(0, ums_mutex_new(&two));
    IS(0, ums_spawn(lock_both, one, &tasks[0]));
    IS(0, ums_spawn(lock_both, two, &tasks[1]));
    for (int i = 0; i < 2; i++)
        IS(0, ums_task_join(tasks[i], UMS_FOREVER, &results[i]));
    IS(-EDEADLK, (intptr_t)results[0] + (intptr_t)results[1]);
    IS(0, ums_mutex_free(one));
    IS(0, ums_mutex_free(two));
    return arg;
}

static void *sleep_for_a_moment(void *arg)
{
    IS(0, ums_sleep(MS));
    atomic_store(&slept, 1);
    return arg;
}

static void *block(void *arg)
{
    struct timespec moment = { 0, 200000000 };
    IS(0, ums_spawn(sleep_for_a_moment, NULL, NULL));
    ums_yield();
    nanosleep(&moment, NULL);
    CHECK(atomic_load(&slept)); /* another worker has run meanwhile */
    return arg;
}

/* Asks as `ums top` does. */
static void stats(ums_options options)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char answer[4096];
    size_t length = 0;
    ssize_t more;
    ums_node *node;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "/tmp/ums-stats-%d", (int)getpid());
    IS(0, ums_node_new(&options, &node));
    IS(0, ums_node_serve_stats(node, address.sun_path));
    IS(0, ums_node_describe(node, "port 7"));
    IS(0, connect(fd, (struct sockaddr *)&address, sizeof address));
    CHECK(write(fd, "ums_schedulers\n", 15) == 15);
    while ((more = read(fd, answer + length, sizeof answer - 1 - length)) > 0)
        length += (size_t)more;
    answer[length] = 0;
    CHECK(strstr(answer, "\"tables\":{\"ums_schedulers\":[{\"scheduler_id\":0,") != NULL);
    CHECK(strstr(answer, "port 7") != NULL);
    close(fd);
    CHECK(ums_node_serve_stats(node, "/there/is/no/such/folder") == -ENOENT);
    IS(-EINVAL, ums_node_describe(node, NULL));
    IS(-EINVAL, ums_node_serve_stats(NULL, address.sun_path));
    IS(0, ums_node_free(node));
    CHECK(access(address.sun_path, F_OK) != 0); /* removed with the node */
}

int main(int argc, char **argv)
{
    ums_options options = options_of(argc, argv);
    ums_node *node;
    options.schedulers = 1;
    monitor(options);

    ums_options watched = options;
    watched.flags = UMS_MONITOR | UMS_NO_REPORTS | UMS_TRACE_LOCKS;
    watched.deadlock_ns = 20 * MS;
    IS(0, ums_node_new(&watched, &node));
    IS(0, ums_node_run(node, deadlock, NULL, NULL));
    IS(0, ums_node_free(node));

    watched = options;
    watched.flags = UMS_DETECT_BLOCKING;
    if (options.worker_kind != UMS_WORKERS_FIBER) {
        IS(0, ums_node_new(&watched, &node));
        IS(0, ums_node_run(node, block, NULL, NULL));
        IS(0, ums_node_free(node));
    } else {
        IS(-EINVAL, ums_node_new(&watched, &node));
        CHECK(strstr(ums_last_error(), "share one thread") != NULL);
    }
    stats(options);
    puts("ok");
    return 0;
}
