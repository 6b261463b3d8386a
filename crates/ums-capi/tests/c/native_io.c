/* Requests with completion routines, and calls that wait. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

struct told {
    atomic_int times;
    int64_t result;
};

static void tell(void *arg, int64_t result)
{
    struct told *told = arg;
    told->result = result;
    atomic_fetch_add(&told->times, 1);
}

static void until_told(struct told *told)
{
    for (int i = 0; i < 30000 && atomic_load(&told->times) == 0; i++)
        IS(0, ums_sleep(MS));
    IS(1, atomic_load(&told->times));
}

static void pipes(void)
{
    struct told told = { 0, 0 }, cancelled = { 0, 0 };
    ums_pending *pending = NULL;
    char buffer[16], more[16];
    int fd[2];

    IS(0, pipe2(fd, O_NONBLOCK | O_CLOEXEC));
    IS(0, ums_submit_read(fd[0], buffer, sizeof buffer, UMS_CURRENT, tell, &told, &pending));
    CHECK(pending != NULL);
    IS(0, atomic_load(&told.times));
    IS(5, write(fd[1], "hello", 5));
    until_told(&told);
    IS(5, told.result);
    CHECK(memcmp(buffer, "hello", 5) == 0);
    IS(0, ums_pending_cancel(pending)); /* it has ended, so this has no effect */
    IS(0, ums_pending_free(pending));
    IS(-EBADF, ums_pending_free(pending));

    IS(0, ums_submit_read(fd[0], more, sizeof more, UMS_CURRENT, tell, &cancelled, &pending));
    IS(0, ums_pending_cancel(pending));
    until_told(&cancelled);
    IS(-ECANCELED, cancelled.result);
    IS(0, ums_pending_free(pending));

    /* Calls that wait, and their time limits. */
    IS(-ETIMEDOUT, ums_read(fd[0], more, sizeof more, UMS_CURRENT, MS));
    IS(3, ums_write(fd[1], "abc", 3, UMS_CURRENT, UMS_FOREVER));
    IS(3, ums_read(fd[0], more, sizeof more, UMS_CURRENT, UMS_FOREVER));
    close(fd[1]);
    IS(0, ums_read(fd[0], more, sizeof more, UMS_CURRENT, UMS_FOREVER)); /* the end of the stream */
    close(fd[0]);

    IS(-EBADF, ums_read(-1, more, 1, 0, UMS_FOREVER));
    IS(-EINVAL, ums_read(0, NULL, 1, 0, UMS_FOREVER));
    IS(-EINVAL, ums_submit_read(0, more, 1, 0, NULL, NULL, NULL));
    IS(-EINVAL, ums_submit_readv(0, NULL, 1, 0, tell, NULL, NULL));
}

static void files(void)
{
    char name[] = "/tmp/ums-capi-test-XXXXXX";
    struct told gathered = { 0, 0 }, synced = { 0, 0 }, scattered = { 0, 0 };
    char first[4], second[8];
    struct iovec out[2] = { { (void *)"user", 4 }, { (void *)"-mode", 5 } };
    struct iovec in[2] = { { first, sizeof first }, { second, sizeof second } };
    int fd = mkstemp(name);

    CHECK(fd >= 0);
    unlink(name);
    CHECK(ums_submit_writev(fd, out, 2, 0, tell, &gathered, NULL) >= 0);
    until_told(&gathered);
    IS(9, gathered.result);
    CHECK(ums_submit_sync(fd, true, tell, &synced, NULL) >= 0);
    until_told(&synced);
    IS(0, synced.result);
    CHECK(ums_submit_readv(fd, in, 2, 0, tell, &scattered, NULL) >= 0);
    until_told(&scattered);
    IS(9, scattered.result);
    CHECK(memcmp(first, "user", 4) == 0 && memcmp(second, "-mode", 5) == 0);
    IS(2, ums_write(fd, "xy", 2, 100, UMS_FOREVER));
    IS(2, ums_read(fd, second, 8, 100, UMS_FOREVER));
    CHECK(memcmp(second, "xy", 2) == 0);
    IS(0, ums_sync(fd, false));
    IS(0, ums_sync(fd, true));
    close(fd);
    IS(-EBADF, ums_sync(fd, true));
    IS(-EBADF, ums_sync(-1, true));
}

/* A cancelled task learns whether its data is on the disk. */
static void *sync_all_the_same(void *folder)
{
    while (!ums_is_cancelled())
        ums_yield();
    IS(-ECANCELED, ums_sleep(MS));
    IS(0, ums_sync((int)(intptr_t)folder, true));
    return NULL;
}

static void syncs(void)
{
    ums_task *task;
    int folder = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(folder >= 0);
    IS(0, ums_spawn(sync_all_the_same, (void *)(intptr_t)folder, &task));
    ums_yield();
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, NULL));
    close(folder);
}

static void *connect_to(void *arg)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    IS(0, ums_connect(fd, arg, sizeof(struct sockaddr_un), UMS_FOREVER));
    IS(4, ums_write(fd, "ping", 4, UMS_CURRENT, UMS_FOREVER));
    char answer[4];
    IS(4, ums_read(fd, answer, 4, UMS_CURRENT, UMS_FOREVER));
    CHECK(memcmp(answer, "pong", 4) == 0);
    close(fd);
    return NULL;
}

static void sockets(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct told told = { 0, 0 };
    ums_task *task;
    char question[4];

    snprintf(address.sun_path + 1, 60, "ums-capi-%d", (int)getpid()); /* an abstract name, without a file */
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0);
    IS(0, bind(listener, (struct sockaddr *)&address, sizeof address));
    IS(0, listen(listener, 8));
    IS(-ETIMEDOUT, ums_accept(listener, MS));
    for (int round = 0; round < 2; round++) {
        int fd;
        IS(0, ums_spawn(connect_to, &address, &task));
        if (round == 0) {
            fd = ums_accept(listener, UMS_FOREVER);
        } else {
            CHECK(ums_submit_accept(listener, tell, &told, NULL) >= 0);
            until_told(&told);
            fd = (int)told.result;
        }
        CHECK(fd >= 0);
        IS(4, ums_read(fd, question, 4, UMS_CURRENT, UMS_FOREVER));
        IS(4, ums_write(fd, "pong", 4, UMS_CURRENT, UMS_FOREVER));
        IS(0, ums_task_join(task, UMS_FOREVER, NULL));
        close(fd);
    }
    close(listener);
    int refused = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    IS(-ECONNREFUSED,
       ums_connect(refused, (struct sockaddr *)&address, sizeof address, UMS_FOREVER));
    IS(-EINVAL, ums_connect(refused, NULL, 0, UMS_FOREVER));
    close(refused);
}

struct waiting {
    struct told told;
    ums_node *node;
    ums_task *task;
    atomic_int ran;
    int fd;
};

static void *run(void *ran)
{
    atomic_store((atomic_int *)ran, 1);
    return NULL;
}

static void *wait_for_event(void *event)
{
    IS(0, ums_event_wait(event, UMS_FOREVER));
    return NULL;
}

static void wait_in_a_routine(void *arg, int64_t result)
{
    struct waiting *w = arg;
    char buffer[4];
    IS(-ENOTRECOVERABLE, ums_read(w->fd, buffer, sizeof buffer, UMS_CURRENT, UMS_FOREVER));
    IS(-ENOTRECOVERABLE, ums_task_join(w->task, UMS_FOREVER, NULL));
    IS(-ENOTRECOVERABLE, ums_task_join(w->task, MS, NULL));
    IS(-ENOTRECOVERABLE, ums_node_run(w->node, run, &w->ran, NULL));
    tell(&w->told, result);
}

/* A call that is refused because it waits has done nothing. */
static void refusals(ums_node *node)
{
    struct waiting w = { .node = node };
    ums_event *event;
    char byte, more[4];
    int ring[2], fd[2];

    IS(0, pipe2(ring, O_NONBLOCK | O_CLOEXEC));
    IS(0, pipe2(fd, O_NONBLOCK | O_CLOEXEC));
    w.fd = fd[0];
    IS(0, ums_event_new(true, false, &event));
    IS(0, ums_spawn(wait_for_event, event, &w.task));
    IS(0, ums_submit_read(ring[0], &byte, 1, UMS_CURRENT, wait_in_a_routine, &w, NULL));
    IS(1, write(ring[1], "x", 1));
    until_told(&w.told);
    IS(2, write(fd[1], "ab", 2));
    IS(2, ums_read(fd[0], more, sizeof more, UMS_CURRENT, 60000 * MS));
    IS(0, ums_event_set(event));
    IS(0, ums_task_join(w.task, UMS_FOREVER, NULL));
    IS(0, atomic_load(&w.ran));
    IS(0, ums_event_free(event));
    for (int i = 0; i < 2; i++)
        close(ring[i]), close(fd[i]);
}

static void *all(void *node)
{
    pipes();
    files();
    syncs();
    sockets();
    refusals(node);
    return NULL;
}

static void *leave_a_read(void *arg)
{
    static char buffer[4];
    int *fd = arg;
    static struct told told;
    CHECK(ums_submit_read(*fd, buffer, 4, UMS_CURRENT, tell, &told, NULL) == 0);
    return &told;
}

static void *accept_until_the_end(void *listener)
{
    IS(-ECANCELED, ums_accept(*(int *)listener, UMS_FOREVER));
    return NULL;
}

/* A node that drains cancels the task that waits for a connection, and need not wait for it. */
static void drains(ums_node *node)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    ums_shutdown_report report = { 9, 9 };
    ums_task *task;

    snprintf(address.sun_path + 1, 60, "ums-capi-drain-%d", (int)getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    IS(0, bind(listener, (struct sockaddr *)&address, sizeof address));
    IS(0, listen(listener, 8));
    IS(0, ums_node_spawn(node, accept_until_the_end, &listener, &task));
    IS(0, ums_node_drain(node, UMS_FOREVER, &report));
    CHECK(report.cancelled == 0 && report.left == 0);
    IS(0, ums_task_join(task, UMS_FOREVER, NULL));
    IS(0, ums_node_free(node));
    close(listener);
}

int main(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 1);
    struct told at_once = { 0, 0 };
    ums_pending *pending = (ums_pending *)1;
    struct told *left = NULL;
    char buffer[4];
    int fd[2];

    IS(0, ums_node_run(node, all, node, NULL));

    /* On a plain thread a request blocks, and has completed when the call returns. */
    IS(0, pipe2(fd, O_NONBLOCK | O_CLOEXEC));
    IS(-ETIMEDOUT, ums_read(fd[0], buffer, 4, UMS_CURRENT, 2 * MS));
    IS(1, write(fd[1], "x", 1));
    IS(1, ums_submit_read(fd[0], buffer, 4, UMS_CURRENT, tell, &at_once, &pending));
    CHECK(pending == NULL && at_once.times == 1 && at_once.result == 1);

    /* Shutting down cancels a request that is still outstanding, and its routine runs before the
     * shutdown ends. */
    IS(0, ums_node_run(node, leave_a_read, &fd[0], (void **)&left));
    IS(0, left->times);
    IS(0, ums_node_free(node));
    IS(1, left->times);
    IS(-ECANCELED, left->result);
    drains(node_of(argc, argv, 1));
    puts("ok");
    return 0;
}
