/* Waiting for descriptors, and serving: connections, limits, and the end by a drain. */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

static int ends[2];
static atomic_int answered, ended, cancelled;

static void *write_soon(void *arg)
{
    IS(0, ums_sleep(MS));
    IS(1, write(ends[1], "x", 1));
    return arg;
}

static void *wait_long(void *arg)
{
    (void)arg;
    return (void *)(intptr_t)ums_wait_fd(ends[0], UMS_READABLE, UMS_FOREVER);
}

/* The waits of workers and of plain threads alike; `node` makes the descriptor ready. */
static void descriptors(ums_node *node)
{
    static char page[4096];
    const int both = UMS_READABLE | UMS_WRITABLE;
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC), ends_of_pair[2];
    char byte;
    IS(0, pipe2(ends, O_NONBLOCK | O_CLOEXEC));
    IS(-ETIMEDOUT, ums_wait_fd(ends[0], UMS_READABLE, 0));
    IS(-ETIMEDOUT, ums_wait_fd(ends[0], UMS_READABLE, MS));
    IS(UMS_WRITABLE, ums_wait_fd(ends[1], UMS_WRITABLE, 0));
    for (int i = 0; i < 2; i++) {
        IS(0, ums_node_spawn(node, write_soon, NULL, NULL));
        IS(UMS_READABLE, ums_wait_fd(ends[0], UMS_READABLE, UMS_FOREVER));
        IS(1, read(ends[0], &byte, 1));
    }
    while (write(ends[1], page, sizeof page) > 0) {
    }
    IS(-ETIMEDOUT, ums_wait_fd(ends[1], UMS_WRITABLE, MS));
    close(ends[0]); /* the other side has gone: a write would fail at once */
    IS(UMS_WRITABLE, ums_wait_fd(ends[1], UMS_WRITABLE, UMS_FOREVER));
    close(ends[1]);

    IS(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends_of_pair));
    ends[0] = ends_of_pair[0];
    ends[1] = ends_of_pair[1];
    IS(UMS_WRITABLE, ums_wait_fd(ends[0], both, UMS_FOREVER));
    IS(1, write(ends[1], "x", 1));
    IS(both, ums_wait_fd(ends[0], both, 0));
    IS(1, read(ends[0], &byte, 1));
    while (write(ends[0], page, sizeof page) > 0) {
    }
    IS(-ETIMEDOUT, ums_wait_fd(ends[0], both, MS));
    IS(0, ums_node_spawn(node, write_soon, NULL, NULL));
    IS(UMS_READABLE, ums_wait_fd(ends[0], both, UMS_FOREVER));
    close(ends[0]);
    close(ends[1]);

    IS(UMS_READABLE, ums_wait_fd(file, UMS_READABLE, UMS_FOREVER));
    IS(-EINVAL, ums_wait_fd(file, 0, 0));
    IS(-EINVAL, ums_wait_fd(file, 4, 0));
    IS(-EBADF, ums_wait_fd(-1, UMS_READABLE, 0));
    close(file);
    CHECK(ums_wait_fd(1000000, UMS_READABLE, UMS_FOREVER) == -EBADF);
}

static void *on_a_worker(void *node)
{
    ums_task *task;
    void *result;
    descriptors(node);
    IS(0, pipe2(ends, O_NONBLOCK | O_CLOEXEC));
    IS(0, ums_spawn(wait_long, NULL, &task));
    IS(-ETIMEDOUT, ums_task_join(task, MS, NULL));
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(-ECANCELED, (intptr_t)result);
    close(ends[0]);
    close(ends[1]);
    return NULL;
}

/* An echo server whose answers begin with the argument. */
static void echo(void *arg, int fd)
{
    char text[64];
    int64_t length;
    while ((length = ums_read(fd, text + 1, sizeof text - 1, UMS_CURRENT, UMS_FOREVER)) > 0) {
        text[0] = *(const char *)arg;
        IS(length + 1, ums_write(fd, text, (size_t)length + 1, UMS_CURRENT, UMS_FOREVER));
        atomic_fetch_add(&answered, 1);
    }
    CHECK(length == 0 || length == -ECANCELED);
    atomic_fetch_add(&ended, 1);
    if (length)
        atomic_fetch_add(&cancelled, 1);
}

static void never(void *arg, int fd)
{
    (void)arg;
    (void)fd;
}

static int connect_to(const void *address, socklen_t length, int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    IS(0, connect(fd, address, length));
    return fd;
}

static void ask(int fd)
{
    char text[3] = "";
    IS(2, write(fd, "hi", 2));
    IS(3, recv(fd, text, 3, MSG_WAITALL));
    CHECK(memcmp(text, "#hi", 3) == 0);
}

static void until(atomic_int *count, int reached)
{
    while (atomic_load(count) < reached)
        usleep(1000);
}

static void tcp(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 2);
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t length = sizeof address;
    ums_serve_options options;
    ums_shutdown_report report;
    ums_server *server;
    int clients[3], listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char byte;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    IS(0, bind(listener, (struct sockaddr *)&address, sizeof address));
    memset(&options, 0, sizeof options);
    options.max_connections = 2;
    IS(-EINVAL, ums_serve(node, listener, &options, never, NULL, &server)); /* no size */
    options.size = sizeof options;
    IS(-EINVAL, ums_serve(node, listener, &options, never, NULL, &server)); /* does not listen */
    IS(0, listen(listener, 8));
    IS(0, getsockname(listener, (struct sockaddr *)&address, &length));
    IS(-EINVAL, ums_serve(node, listener, &options, NULL, NULL, &server));
    IS(-EINVAL, ums_serve(node, listener, &options, never, NULL, NULL));
    IS(-EBADF, ums_serve(node, -1, &options, never, NULL, &server));
    IS(-ENOTSOCK, ums_serve(node, 0, &options, never, NULL, &server));
    IS(0, ums_serve(node, listener, &options, echo, "#", &server));
    IS(0, close(listener)); /* the server has its own */

    for (int i = 0; i < 2; i++) {
        clients[i] = connect_to(&address, sizeof address, AF_INET);
        ask(clients[i]);
    }
    IS(2, ums_server_connections(server));
    clients[2] = connect_to(&address, sizeof address, AF_INET); /* one too many */
    CHECK(read(clients[2], &byte, 1) <= 0);
    close(clients[2]);
    close(clients[1]);
    until(&ended, 1);

    /* Nothing comes from the other client, so its function gets the grace time, and is cancelled. */
    IS(0, ums_node_drain(node, 50 * MS, &report));
    IS(1, report.cancelled);
    IS(0, report.left);
    IS(2, atomic_load(&ended));
    IS(1, atomic_load(&cancelled));
    IS(0, read(clients[0], &byte, 1));
    close(clients[0]);
    IS(0, ums_server_connections(server));
    IS(0, ums_server_stop(server));
    IS(0, ums_server_free(server));
    IS(-EBADF, ums_server_stop(server));
    IS(0, ums_server_free(NULL));
    IS(0, ums_server_connections(NULL));
    IS(0, ums_node_free(node));
}

static void unix_domain(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 1);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    ums_server *server;
    int client, listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "/tmp/ums-serve-%d", (int)getpid());
    IS(0, bind(listener, (struct sockaddr *)&address, sizeof address));
    IS(0, listen(listener, 8));
    IS(0, ums_serve(node, listener, NULL, echo, "#", &server));
    IS(0, close(listener));
    client = connect_to(&address, sizeof address, AF_UNIX);
    ask(client);
    IS(0, ums_server_stop(server));
    ask(client); /* what was accepted continues */
    close(client);
    until(&ended, 3);
    IS(0, ums_server_free(server));
    IS(0, ums_node_drain(node, 1000 * MS, NULL));
    IS(0, ums_node_free(node));
    unlink(address.sun_path);
}

int main(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 1);
    IS(0, ums_node_run(node, on_a_worker, node, NULL));
    descriptors(node);
    IS(0, ums_node_free(node));
    tcp(argc, argv);
    unix_domain(argc, argv);
    IS(4, atomic_load(&answered));
    puts("ok");
    return 0;
}
