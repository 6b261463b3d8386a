/* What a cancelled task can still do: what need not wait, writes as far as there is room, and
 * everything in ums_shield. */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

static ums_event *begun, *inside;
static ums_mutex *mutex;
static ums_rwlock *rwlock;
static atomic_int calls;

static int listener, pipe_ends[2], pair[2];
static struct sockaddr_in address;

/* Connected clients, and descriptors that have input. */
static void prepare_descriptors(int clients[2])
{
    socklen_t length = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0);
    IS(0, bind(listener, (struct sockaddr *)&address, sizeof address));
    IS(0, listen(listener, 8));
    IS(0, getsockname(listener, (struct sockaddr *)&address, &length));
    for (int i = 0; i < 2; i++) {
        clients[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        IS(0, connect(clients[i], (struct sockaddr *)&address, sizeof address));
    }
    IS(0, pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC));
    IS(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair));
    IS(2, write(pipe_ends[1], "ab", 2));
    IS(2, write(pair[1], "ab", 2));
}

/* Reads and accepts fail at once, and take nothing. */
static void refused(void)
{
    char byte;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(ums_is_cancelled());
    IS(-ECANCELED, ums_checkpoint());
    IS(-ECANCELED, ums_sleep(0));
    IS(-ECANCELED, ums_read(pipe_ends[0], &byte, 1, UMS_CURRENT, UMS_FOREVER));
    IS(-ECANCELED, ums_read(pair[0], &byte, 1, UMS_CURRENT, UMS_FOREVER));
    IS(-ECANCELED, ums_read(pair[0], &byte, 1, UMS_CURRENT, 0));
    CHECK(strstr(ums_last_error(), "cancelled") != NULL);
    IS(-ECANCELED, ums_accept(listener, UMS_FOREVER));
    IS(-ECANCELED, ums_connect(fd, (struct sockaddr *)&address, sizeof address, UMS_FOREVER));
    close(fd);
    IS(1, read(pipe_ends[0], &byte, 1));
    CHECK(byte == 'a');
    IS(1, read(pair[0], &byte, 1));
    CHECK(byte == 'a');
}

/* A write to a file is made, also where it waits for the disk. */
static void write_files(void)
{
    static char page[4096];
    int flags[] = { 0, O_DSYNC };
    for (int i = 0; i < 2; i++) {
        char name[] = "/tmp/ums-capi-cancel-XXXXXX";
        int file = mkostemp(name, flags[i]);
        CHECK(file >= 0);
        unlink(name);
        for (int n = 0; n < 20; n++) {
            IS(4096, ums_write(file, page, sizeof page, n * 4096ull, UMS_FOREVER));
            IS(4096, ums_write(file, page, sizeof page, UMS_CURRENT, UMS_FOREVER));
        }
        close(file);
    }
}

/* A call that need not wait succeeds, and a write writes what there is room for. */
static void granted(void)
{
    static char page[65536];
    ums_arm arm = { .kind = UMS_ARM_READABLE, .fd = pair[0] };
    ums_channel *channel;
    int64_t written, all = 0;
    void *value;
    IS(UMS_READABLE, ums_wait_fd(pipe_ends[0], UMS_READABLE, UMS_FOREVER));
    IS(0, ums_select(&arm, 1, 0, UMS_FOREVER));
    IS(0, ums_channel_new(1, &channel));
    IS(0, ums_channel_send(channel, page, UMS_FOREVER));
    IS(-ECANCELED, ums_channel_send(channel, page, UMS_FOREVER));
    IS(0, ums_channel_recv(channel, UMS_FOREVER, &value));
    IS(-ECANCELED, ums_channel_recv(channel, UMS_FOREVER, &value));
    IS(0, ums_channel_free(channel));
    while ((written = ums_write(pair[0], page, sizeof page, UMS_CURRENT, UMS_FOREVER)) > 0)
        all += written;
    CHECK(all > 0);
    IS(-ECANCELED, written);
    write_files();
}

/* In a shield all of that is as if the task was not cancelled. */
static void *use_descriptors(void *arg)
{
    char byte, name[] = "/tmp/ums-capi-cancel-XXXXXX";
    int file = mkstemp(name);
    int fd = ums_accept(listener, UMS_FOREVER);
    CHECK(fd >= 0 && file >= 0);
    close(fd);
    unlink(name);
    IS(3, ums_write(file, "abc", 3, 0, UMS_FOREVER));
    IS(1, ums_read(file, &byte, 1, 2, UMS_FOREVER));
    CHECK(byte == 'c');
    close(file);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    IS(0, ums_connect(fd, (struct sockaddr *)&address, sizeof address, UMS_FOREVER));
    close(fd);
    IS(1, ums_read(pipe_ends[0], &byte, 1, UMS_CURRENT, UMS_FOREVER));
    CHECK(byte == 'b');
    IS(-ETIMEDOUT, ums_read(pipe_ends[0], &byte, 1, UMS_CURRENT, MS));
    IS(-ETIMEDOUT, ums_write(pair[0], &byte, 1, UMS_CURRENT, MS));
    CHECK(!ums_is_cancelled());
    IS(0, ums_checkpoint());
    IS(0, ums_sleep(MS));
    return (char *)arg + 1;
}

static void *wait_and_use_descriptors(void *arg)
{
    void *result = NULL;
    IS(0, ums_event_set(begun));
    IS(-ECANCELED, ums_sleep(600000 * MS));
    refused();
    granted();
    IS(0, ums_shield(use_descriptors, arg, &result));
    IS(-ECANCELED, ums_sleep(0));
    CHECK(ums_is_cancelled());
    return result;
}

static void descriptors(ums_node *node)
{
    int clients[2];
    ums_task *task;
    void *result;
    prepare_descriptors(clients);
    IS(0, ums_node_spawn(node, wait_and_use_descriptors, (void *)6, &task));
    IS(0, ums_event_wait(begun, UMS_FOREVER));
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(7, (intptr_t)result);
    for (int i = 0; i < 2; i++)
        close(clients[i]), close(pipe_ends[i]), close(pair[i]);
    close(listener);
}

/* Both locks are the plain thread's when this begins. */
static void *lock_both(void *arg)
{
    IS(0, ums_event_set(inside));
    IS(-ETIMEDOUT, ums_mutex_lock(mutex, MS)); /* a limit inside holds */
    IS(0, ums_mutex_lock(mutex, UMS_FOREVER));
    IS(0, ums_rwlock_write(rwlock, UMS_FOREVER));
    IS(0, ums_rwlock_unlock(rwlock));
    IS(0, ums_mutex_unlock(mutex));
    return arg;
}

static void *lock_after_a_cancellation(void *arg)
{
    IS(0, ums_event_set(begun));
    IS(-ECANCELED, ums_sleep(600000 * MS));
    IS(-ECANCELED, ums_mutex_lock(mutex, UMS_FOREVER));
    IS(-ECANCELED, ums_rwlock_read(rwlock, UMS_FOREVER));
    IS(0, ums_shield(lock_both, arg, &arg));
    return arg;
}

/* The cancellation comes while the task waits inside. */
static void *lock_during_a_cancellation(void *arg)
{
    IS(0, ums_event_set(begun));
    IS(0, ums_shield(lock_both, arg, NULL));
    IS(-ECANCELED, ums_sleep(600000 * MS));
    return arg;
}

static void locks(ums_node *node, ums_function function)
{
    ums_task *task;
    void *result;
    IS(0, ums_mutex_lock(mutex, UMS_FOREVER));
    IS(0, ums_rwlock_write(rwlock, UMS_FOREVER));
    IS(0, ums_node_spawn(node, function, (void *)5, &task));
    IS(0, ums_event_wait(begun, UMS_FOREVER));
    if (function == lock_after_a_cancellation)
        IS(0, ums_task_cancel(task));
    IS(0, ums_event_wait(inside, UMS_FOREVER));
    IS(0, ums_task_cancel(task));
    IS(-ETIMEDOUT, ums_task_join(task, 20 * MS, NULL));
    IS(0, ums_mutex_unlock(mutex));
    IS(-ETIMEDOUT, ums_task_join(task, 20 * MS, NULL));
    IS(0, ums_rwlock_unlock(rwlock));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(5, (intptr_t)result);
}

static void *count(void *arg)
{
    atomic_fetch_add(&calls, 1);
    return arg;
}

static void shield_in_a_routine(void *told, int64_t result)
{
    IS(1, result);
    IS(0, ums_shield(count, NULL, NULL));
    IS(0, ums_event_set(told));
}

static void *misuse(void *arg)
{
    char byte;
    void *result = NULL;
    ums_event *told;
    IS(-EINVAL, ums_shield(NULL, NULL, &result));
    CHECK(strstr(ums_last_error(), "NULL") != NULL);
    IS(0, ums_shield(count, (void *)3, &result));
    IS(3, (intptr_t)result);
    IS(0, ums_shield(count, NULL, NULL));
    IS(0, ums_go_preemptive(NULL, count, (void *)4, &result));
    IS(4, (intptr_t)result);
    if (!ums_is_worker())
        return arg;
    IS(0, pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC));
    IS(0, ums_event_new(true, false, &told));
    IS(0, ums_submit_read(pipe_ends[0], &byte, 1, UMS_CURRENT, shield_in_a_routine, told, NULL));
    IS(1, write(pipe_ends[1], "x", 1));
    IS(0, ums_event_wait(told, UMS_FOREVER));
    IS(0, ums_event_free(told));
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return arg;
}

int main(int argc, char **argv)
{
    IS(0, ums_mutex_new(&mutex));
    IS(0, ums_rwlock_new(&rwlock));
    IS(0, ums_event_new(false, false, &begun));
    IS(0, ums_event_new(false, false, &inside));
    for (uint32_t io = UMS_IO_AUTO; io <= UMS_IO_EPOLL; io++) {
        ums_options options = options_of(argc, argv);
        ums_node *node;
        options.schedulers = 1;
        options.io = io;
        if (ums_node_new(&options, &node) < 0 && io == UMS_IO_URING)
            continue; /* the system does not allow it */
        descriptors(node);
        locks(node, lock_after_a_cancellation);
        locks(node, lock_during_a_cancellation);
        atomic_store(&calls, 0);
        IS(0, ums_node_run(node, misuse, NULL, NULL));
        misuse(NULL); /* a plain thread is never cancelled */
        IS(7, atomic_load(&calls));
        IS(0, ums_node_free(node));
    }
    IS(0, ums_mutex_free(mutex));
    IS(0, ums_rwlock_free(rwlock));
    IS(0, ums_event_free(begun));
    IS(0, ums_event_free(inside));
    puts("ok");
    return 0;
}
