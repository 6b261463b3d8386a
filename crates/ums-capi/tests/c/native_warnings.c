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
    ums_options options;
    ums_node *node = NULL;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.schedulers = 1;
    options.flags = flags;
    if (argc > 1 && strcmp(argv[1], "fiber") == 0)
        options.worker_kind = UMS_WORKERS_FIBER;
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

static void *spin(void *arg)
{
    IS(0, ums_spawn(sleep_for_a_moment, NULL, NULL));
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
    /* No other worker has run meanwhile. */
    CHECK(!atomic_load(&slept));
    return arg;
}

/* Waits until something is printed, and then lets the spinning worker end. */
static void *watch(void *log)
{
    struct timespec moment = {0, 10000000};
    int fd = *(int *)log;
    while (lseek(fd, 0, SEEK_END) == 0)
        nanosleep(&moment, NULL);
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

/* Runs `spin` on a node with these flags. Returns the text that was printed meanwhile. */
static const char *said_by(int argc, char **argv, unsigned flags, void *(*until)(void *))
{
    static char text[4096];
    char path[] = "/tmp/ums-said-XXXXXX";
    int log = mkstemp(path), err = dup(2);
    ssize_t length;
    pthread_t other;
    ums_node *node = node_with(argc, argv, flags);
    CHECK(log >= 0 && err >= 0 && unlink(path) == 0);
    atomic_store(&enough, 0);
    CHECK(dup2(log, 2) == 2);
    IS(0, pthread_create(&other, NULL, until, &log));
    IS(0, ums_node_run(node, spin, NULL, NULL));
    IS(0, pthread_join(other, NULL));
    IS(0, ums_node_free(node));
    CHECK(dup2(err, 2) == 2);
    length = pread(log, text, sizeof text - 1, 0);
    CHECK(length >= 0);
    text[length] = 0;
    close(log);
    close(err);
    return text;
}

int main(int argc, char **argv)
{
    const char *said = said_by(argc, argv, UMS_NO_WARNINGS, wait_two_seconds);
    ums_node *node;
    CHECK(*said == 0);
    said = said_by(argc, argv, 0, watch);
    if (!strstr(said, "is held up") || !strstr(said, "in keep_the_scheduler")) {
        fprintf(stderr, "it says: %s\n", said);
        return 1;
    }
    atomic_store(&slept, 0);
    node = node_with(argc, argv, UMS_KEEP_BLOCKED);
    IS(0, ums_node_run(node, block, NULL, NULL));
    IS(0, ums_node_free(node));
    puts("ok");
    return 0;
}
