/* Channels of pointers: each value to one receiver and in order, what closing does, every misuse. */
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

enum { SENDERS = 4, VALUES = 50 };

static ums_channel *channel;

static void *send_some(void *arg)
{
    for (intptr_t i = 0; i < VALUES; i++)
        IS(0, ums_channel_send(channel, (void *)((intptr_t)arg * VALUES + i), UMS_FOREVER));
    return NULL;
}

static void *receive_all(void *arg)
{
    intptr_t sum = 0, last[SENDERS] = { 0 };
    void *value;
    int code;
    (void)arg;
    while ((code = ums_channel_recv(channel, UMS_FOREVER, &value)) == 0) {
        intptr_t sender = (intptr_t)value / VALUES, number = (intptr_t)value % VALUES + 1;
        CHECK(last[sender] < number); /* in order */
        last[sender] = number;
        sum += (intptr_t)value;
    }
    IS(-EPIPE, code);
    return (void *)sum;
}

/* Values of several senders through a channel with this bound to two receivers. */
static void stream(size_t bound)
{
    ums_task *senders[SENDERS], *receivers[2];
    intptr_t sum = 0;
    IS(0, ums_channel_new(bound, &channel));
    for (int i = 0; i < 2; i++)
        IS(0, ums_spawn(receive_all, NULL, &receivers[i]));
    for (intptr_t i = 0; i < SENDERS; i++)
        IS(0, ums_spawn(send_some, (void *)i, &senders[i]));
    for (int i = 0; i < SENDERS; i++)
        IS(0, ums_task_join(senders[i], UMS_FOREVER, NULL));
    IS(0, ums_channel_close(channel));
    for (int i = 0; i < 2; i++) {
        void *result;
        IS(0, ums_task_join(receivers[i], UMS_FOREVER, &result));
        sum += (intptr_t)result;
    }
    IS(SENDERS * VALUES * (SENDERS * VALUES - 1) / 2, sum);
    IS(0, ums_channel_free(channel));
}

static void *send_one(void *arg)
{
    return (void *)(intptr_t)ums_channel_send(channel, arg, UMS_FOREVER);
}

static void *receive_one(void *arg)
{
    void *value;
    (void)arg;
    return (void *)(intptr_t)ums_channel_recv(channel, UMS_FOREVER, &value);
}

static void closing(void)
{
    ums_task *task;
    void *value = "unchanged", *result;
    IS(0, ums_channel_new(1, &channel));
    IS(-ETIMEDOUT, ums_channel_recv(channel, 0, &value));
    IS(-ETIMEDOUT, ums_channel_recv(channel, MS, &value));
    CHECK(strcmp(value, "unchanged") == 0);
    IS(0, ums_channel_send(channel, NULL, 0));
    IS(1, ums_channel_len(channel));
    IS(-EINVAL, ums_channel_recv(channel, 0, NULL));
    IS(1, ums_channel_len(channel));
    IS(-ETIMEDOUT, ums_channel_send(channel, "more", 0));
    IS(-ETIMEDOUT, ums_channel_send(channel, "more", MS));

    IS(0, ums_spawn(send_one, "late", &task));
    IS(-ETIMEDOUT, ums_task_join(task, MS, NULL));
    IS(-EBUSY, ums_channel_free(channel)); /* a sender waits */
    IS(0, ums_channel_close(channel));
    IS(0, ums_channel_close(channel));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(-EPIPE, (intptr_t)result);
    IS(-EPIPE, ums_channel_send(channel, "later", UMS_FOREVER));
    CHECK(strstr(ums_last_error(), "closed") != NULL);
    IS(0, ums_channel_recv(channel, UMS_FOREVER, &value));
    CHECK(value == NULL);
    IS(-EPIPE, ums_channel_recv(channel, UMS_FOREVER, &value));
    IS(0, ums_channel_free(channel));
    IS(-EBADF, ums_channel_send(channel, NULL, 0));

    IS(0, ums_channel_new(3, &channel));
    IS(0, ums_spawn(receive_one, NULL, &task));
    IS(-ETIMEDOUT, ums_task_join(task, MS, NULL));
    IS(0, ums_task_cancel(task));
    IS(0, ums_task_join(task, UMS_FOREVER, &result));
    IS(-ECANCELED, (intptr_t)result);
    IS(0, ums_channel_send(channel, "left", 0)); /* forgotten by the free */
    IS(0, ums_channel_free(channel));
}

static char byte;

static void send_the_result(void *arg, int64_t result)
{
    void *value;
    (void)arg;
    IS(-ENOTRECOVERABLE, ums_channel_recv(channel, MS, &value)); /* a routine must not wait */
    IS(0, ums_channel_send(channel, (void *)(intptr_t)result, 0));
}

/* A completion routine sends to a channel. */
static void routines(void)
{
    int ends[2];
    void *value;
    IS(0, pipe2(ends, O_NONBLOCK | O_CLOEXEC));
    IS(0, ums_channel_new(1, &channel));
    IS(0, ums_submit_read(ends[0], &byte, 1, UMS_CURRENT, send_the_result, NULL, NULL));
    IS(1, write(ends[1], "x", 1));
    IS(0, ums_channel_recv(channel, UMS_FOREVER, &value));
    IS(1, (intptr_t)value);
    IS(0, ums_channel_free(channel));
    close(ends[0]);
    close(ends[1]);
}

static void *all(void *arg)
{
    const size_t bounds[] = { 0, 1, 7, SIZE_MAX };
    for (size_t i = 0; i < 4; i++)
        stream(bounds[i]);
    closing();
    routines();
    return arg;
}

int main(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 2);
    void *value;
    IS(0, ums_node_run(node, all, NULL, NULL));
    IS(-EINVAL, ums_channel_new(1, NULL));
    IS(0, ums_channel_new(1, &channel));
    IS(0, ums_channel_send(channel, "from a thread", UMS_FOREVER));
    IS(0, ums_channel_recv(channel, UMS_FOREVER, &value));
    CHECK(strcmp(value, "from a thread") == 0);
    IS(-ETIMEDOUT, ums_channel_recv(channel, MS, &value));
    IS(0, ums_node_free(node));
    IS(0, ums_channel_free(channel));
    IS(0, ums_channel_free(NULL));
    IS(0, ums_channel_len(NULL));
    puts("ok");
    return 0;
}
