/* Sentences on stderr, the flag that turns them off, and the flag with which a blocked worker
 * keeps its scheduler. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static atomic_int enough, slept;

static ums_node *node_with(int argc, char **argv, unsigned flags)
{
    ums_options options = options_of(argc, argv);
    ums_node *node = NULL;
    options.schedulers = 1;
    options.flags = flags;
    IS(0, ums_node_new(&options, &node));
    return node;
}

static void *sleep_for_a_moment(void *arg)
{
    IS(0, ums_sleep(MS));
    atomic_store(&slept, 1);
    return arg;
}

__attribute__((noinline)) static void keep_the_scheduler(void)
{
    while (!atomic_load(&enough))
        ;
}

/* Long enough that it still sleeps when the other worker begins to spin, also on a busy computer. */
static void *sleep_meanwhile(void *arg)
{
    IS(0, ums_sleep(300 * MS));
    return arg;
}

static void *spin(void *arg)
{
    IS(0, ums_spawn(sleep_meanwhile, NULL, NULL));
    ums_yield();
    keep_the_scheduler();
    return arg;
}

static void *block(void *arg)
{
    struct timespec moment = {0, 200000000};
    IS(0, ums_spawn(sleep_for_a_moment, NULL, NULL));
    ums_yield();
    nanosleep(&moment, NULL);
    /* No other worker has run meanwhile, unless the worker has its own context: then a call of the
     * C library hands over before it blocks. */
    IS(*(int *)arg == UMS_WORKERS_CONTEXT, atomic_load(&slept));
    return arg;
}

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    IS(0, clock_gettime(clock, &now));
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Set if the computer was so busy that the worker got less than half of the time: then nothing is
 * printed, which is right. */
static int was_busy;

/* Waits until something is printed, for at most 20 seconds, and then lets the spinning worker end. */
static void *watch(void *log)
{
    struct timespec moment = {0, 10000000};
    int fd = *(int *)log;
    double begun = seconds_of(CLOCK_MONOTONIC), used = seconds_of(CLOCK_PROCESS_CPUTIME_ID), passed;
    do {
        nanosleep(&moment, NULL);
        passed = seconds_of(CLOCK_MONOTONIC) - begun;
    } while (lseek(fd, 0, SEEK_END) == 0 && passed < 20);
    was_busy = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used < passed / 2;
    atomic_store(&enough, 1);
    return NULL;
}

static void *wait_two_seconds(void *arg)
{
    struct timespec span = {2, 0};
    nanosleep(&span, NULL);
    atomic_store(&enough, 1);
    return arg;
}

/* Sends stderr to a file until `text_of`. */
static int capture(int *err)
{
    char path[] = "/tmp/ums-said-XXXXXX";
    int log = mkstemp(path);
    *err = dup(2);
    CHECK(log >= 0 && *err >= 0 && unlink(path) == 0);
    CHECK(dup2(log, 2) == 2);
    return log;
}

static const char *text_of(int log, int err)
{
    static char text[4096];
    ssize_t length;
    CHECK(dup2(err, 2) == 2);
    length = pread(log, text, sizeof text - 1, 0);
    CHECK(length >= 0);
    text[length] = 0;
    close(log);
    close(err);
    return text;
}

/* Runs `spin` on a node with these flags. Returns the text that was printed meanwhile. */
static const char *said_by(int argc, char **argv, unsigned flags, void *(*until)(void *))
{
    int err, log;
    pthread_t other;
    ums_node *node = node_with(argc, argv, flags);
    atomic_store(&enough, 0);
    log = capture(&err);
    IS(0, pthread_create(&other, NULL, until, &log));
    IS(0, ums_node_run(node, spin, NULL, NULL));
    IS(0, pthread_join(other, NULL));
    IS(0, ums_node_free(node));
    return text_of(log, err);
}

static void *sleep_on(void *arg)
{
    IS(-ECANCELED, ums_sleep(UMS_FOREVER));
    return arg;
}

/* A drain that takes more than a second says what it waits for, unless it is told to be quiet. */
static void drains(int argc, char **argv)
{
    const unsigned flags[2] = { UMS_NO_WARNINGS, 0 };
    for (int i = 0; i < 2; i++) {
        ums_node *node = node_with(argc, argv, flags[i]);
        ums_shutdown_report report;
        int err, log = capture(&err);
        const char *said;
        IS(0, ums_node_spawn(node, sleep_on, NULL, NULL));
        IS(0, ums_node_drain(node, 1200 * MS, &report));
        said = text_of(log, err);
        IS(1, report.cancelled);
        IS(0, report.left);
        IS(flags[i] == 0, strstr(said, "a task still runs (it waits for SLEEP)") != NULL);
        IS(0, ums_node_free(node));
    }
}

int main(int argc, char **argv)
{
    const char *said = said_by(argc, argv, UMS_NO_WARNINGS, wait_two_seconds);
    int kind = (int)options_of(argc, argv).worker_kind;
    ums_node *node;
    CHECK(*said == 0);
    said = said_by(argc, argv, 0, watch);
    if (*said == 0 && was_busy) {
        fprintf(stderr, "this computer is too busy for a message\n");
    } else if (!strstr(said, "is held up") || !strstr(said, "in keep_the_scheduler") ||
               !strstr(said, "Call ums_yield() now and then in such code")) {
        fprintf(stderr, "it says: %s\n", said);
        return 1;
    }
    drains(argc, argv);
    atomic_store(&slept, 0);
    node = node_with(argc, argv, UMS_KEEP_BLOCKED);
    IS(0, ums_node_run(node, block, &kind, NULL));
    IS(0, ums_node_free(node));
    puts("ok");
    return 0;
}
