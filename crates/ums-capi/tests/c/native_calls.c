/* Calls of the C library that need not wait: a worker makes them where it is. A worker with its
 * own context would otherwise leave its host for each of them, which takes longer than the call. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static ums_node *node;
static ums_event *event;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Returns how many calls workers have made outside their scheduler without declaring them. */
static long calls_outside(void)
{
    const char *name = "\"undeclared_calls_count\":";
    char *json = NULL, *at;
    long count;
    IS(0, ums_node_stats_json(node, &json));
    at = strstr(json, name);
    CHECK(at != NULL);
    count = strtol(at + strlen(name), NULL, 10);
    ums_text_free(json);
    return count;
}

static void polls(int fd)
{
    struct timespec now = { 0, 0 }, second = { 1, 0 };
    struct pollfd one = { fd, POLLIN, 0 };
    struct timeval moment = { 0, 0 };
    struct epoll_event happened = { .events = EPOLLIN };
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    fd_set set;

    IS(1, poll(&one, 1, 0));
    IS(1, poll(&one, 1, 1000));
    IS(1, ppoll(&one, 1, &now, NULL));
    IS(1, ppoll(&one, 1, &second, NULL));
    IS(1, ppoll(&one, 1, NULL, NULL));
    FD_ZERO(&set);
    FD_SET(fd, &set);
    IS(1, select(fd + 1, &set, NULL, NULL, &moment));
    IS(1, pselect(fd + 1, &set, NULL, NULL, &now, NULL));
    IS(0, epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &happened));
    IS(1, epoll_wait(epoll, &happened, 1, 0));
    IS(1, epoll_pwait(epoll, &happened, 1, 0, NULL));
    close(epoll);
}

static void waits_of_the_library(int fd)
{
    ums_arm arms[2] = {
        { .kind = UMS_ARM_EVENT, .object = event },
        { .kind = UMS_ARM_READABLE, .fd = fd },
    };
    IS(UMS_READABLE, ums_wait_fd(fd, UMS_READABLE, UMS_FOREVER));
    IS(1, ums_select(arms, 2, 0, UMS_FOREVER));
    IS(1, ums_select(arms, 2, 0, 0));
}

static void *need_not_wait(void *arg)
{
    struct timespec little = { 0, 1000000 };
    struct pollfd one;
    long before = calls_outside();
    int ends[2];

    IS(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    IS(1, write(ends[1], "x", 1));
    waits_of_the_library(ends[0]);
    IS(before, calls_outside());
    polls(ends[0]);
    IS(before, calls_outside());
    IS(-1, waitpid(-1, NULL, WNOHANG));
    IS(-1, flock(-1, LOCK_SH | LOCK_NB));
    IS(0, pthread_mutex_lock(&mutex));
    IS(0, pthread_mutex_unlock(&mutex));
    IS(before, calls_outside());

    /* The count is of such calls: one that waits changes it. */
    one = (struct pollfd){ ends[1], POLLIN, 0 };
    IS(0, ppoll(&one, 1, &little, NULL));
    IS(before + (*(int *)arg == UMS_WORKERS_CONTEXT), calls_outside());
    close(ends[0]);
    close(ends[1]);
    return NULL;
}

int main(int argc, char **argv)
{
    int kind = (int)options_of(argc, argv).worker_kind;
    node = node_of(argc, argv, 1);
    IS(0, ums_event_new(true, false, &event));
    IS(0, ums_node_run(node, need_not_wait, &kind, NULL));
    IS(0, ums_node_free(node));
    IS(0, ums_event_free(event));
    puts("ok");
    return 0;
}
