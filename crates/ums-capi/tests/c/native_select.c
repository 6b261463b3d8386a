/* Select: each kind of arm, before the wait and during it; that only one arm happens; every misuse. */
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

enum { RECV, EVENT, SEMAPHORE, READABLE, TASK, ARMS };

static ums_channel *channel, *full;
static ums_event *event, *may_end;
static ums_semaphore *semaphore;
static ums_task *task;
static int ends[2];
static ums_arm arms[ARMS];

static void *wait_for_the_end(void *arg)
{
    IS(0, ums_event_wait(may_end, UMS_FOREVER));
    return arg;
}

static void *make_ready(void *which)
{
    switch ((intptr_t)which) {
    case RECV:
        IS(0, ums_channel_send(channel, "a value", 0));
        break;
    case EVENT:
        IS(0, ums_event_set(event));
        break;
    case SEMAPHORE:
        IS(0, ums_semaphore_release(semaphore, 1));
        break;
    case READABLE:
        IS(1, write(ends[1], "x", 1));
        break;
    default:
        IS(0, ums_event_set(may_end));
    }
    return NULL;
}

/* Checks what the arm has got, and that the others have nothing. */
static void check_arm(int which)
{
    char byte;
    IS(0, arms[which].result);
    if (which == RECV)
        CHECK(strcmp(arms[RECV].value, "a value") == 0);
    if (which == READABLE)
        IS(1, read(ends[0], &byte, 1));
    IS(0, ums_channel_len(channel));
    CHECK(!ums_event_is_set(event));
    IS(0, ums_semaphore_available(semaphore));
    if (which == TASK) {
        CHECK(strcmp(arms[TASK].value, "its result") == 0);
        IS(-EBADF, ums_task_join(task, 0, NULL));
        IS(0, ums_spawn(wait_for_the_end, "its result", &task));
        arms[TASK].object = task;
    }
}

static void each_arm_happens(void)
{
    for (int n = 0; n < ARMS; n++)
        arms[n].result = 1;
    IS(-ETIMEDOUT, ums_select(arms, ARMS, 0, 0));
    IS(-ETIMEDOUT, ums_select(arms, ARMS, 0, MS));
    for (int n = 0; n < ARMS; n++)
        IS(1, arms[n].result);
    for (intptr_t which = 0; which < ARMS; which++) {
        /* Before the select, and while it waits: a task runs when the caller has parked. */
        IS(0, ums_spawn(make_ready, (void *)which, NULL));
        IS(which, ums_select(arms, ARMS, 0, UMS_FOREVER));
        check_arm((int)which);
        make_ready((void *)which);
        if (which == TASK)
            while (!ums_task_is_finished(task))
                ums_yield();
        IS(which, ums_select(arms, ARMS, which % 2 ? UMS_SELECT_BIASED : 0, 0));
        check_arm((int)which);
    }
}

static void *take_one(void *arg)
{
    void *value;
    IS(0, ums_channel_recv(full, UMS_FOREVER, &value));
    return arg;
}

static void sends(void)
{
    ums_arm send[2];
    memset(send, 0, sizeof send);
    send[0].kind = UMS_ARM_SEND;
    send[0].object = full;
    send[0].value = "sent";
    send[1].kind = UMS_ARM_WRITABLE;
    send[1].fd = ends[1];
    IS(0, ums_select(send, 1, 0, UMS_FOREVER));
    IS(-ETIMEDOUT, ums_select(send, 1, 0, MS));
    IS(1, ums_channel_len(full));
    CHECK(strcmp(send[0].value, "sent") == 0);
    IS(1, ums_select(send, 2, 0, UMS_FOREVER)); /* the pipe has room */
    IS(0, send[1].result);
    IS(0, ums_spawn(take_one, NULL, NULL));
    IS(0, ums_select(send, 1, 0, UMS_FOREVER));

    IS(0, ums_channel_close(full));
    IS(0, ums_select(send, 1, 0, UMS_FOREVER));
    IS(-EPIPE, send[0].result);
    CHECK(strstr(ums_last_error(), "closed") != NULL);
    send[0].kind = UMS_ARM_RECV;
    IS(0, ums_select(send, 1, 0, UMS_FOREVER));
    IS(0, send[0].result);
    IS(0, ums_select(send, 1, 0, UMS_FOREVER));
    IS(-EPIPE, send[0].result);
}

/* Of two arms that are ready, one is taken at random, or the first. */
static void choices(void)
{
    ums_event *set;
    ums_arm two[2];
    int taken[2] = { 0, 0 };
    IS(0, ums_event_new(true, true, &set));
    memset(two, 0, sizeof two);
    two[0].kind = two[1].kind = UMS_ARM_EVENT;
    two[0].object = two[1].object = set;
    for (int i = 0; i < 100; i++)
        taken[ums_select(two, 2, 0, UMS_FOREVER)]++;
    CHECK(taken[0] > 0 && taken[1] > 0);
    for (int i = 0; i < 100; i++)
        IS(0, ums_select(two, 2, UMS_SELECT_BIASED, UMS_FOREVER));
    IS(0, ums_event_free(set));
}

static void *select_long(void *arg)
{
    ums_arm own[2];
    (void)arg;
    memcpy(own, arms + SEMAPHORE, sizeof(ums_arm));
    memcpy(own + 1, arms + TASK, sizeof(ums_arm));
    return (void *)(intptr_t)ums_select(own, 2, 0, UMS_FOREVER);
}

static void misuses(void)
{
    ums_task *other;
    void *result;
    ums_arm one, twice[2];
    memset(&one, 0, sizeof one);
    IS(-EINVAL, ums_select(&one, 1, 0, 0)); /* no kind */
    IS(-EINVAL, ums_select(NULL, 1, 0, 0));
    IS(-EINVAL, ums_select(arms, 0, 0, UMS_FOREVER));
    IS(-EINVAL, ums_select(arms, 257, 0, 0));
    IS(-EINVAL, ums_select(arms, ARMS, 2, 0));
    one.kind = UMS_ARM_EVENT;
    IS(-EINVAL, ums_select(&one, 1, 0, 0)); /* NULL */
    one.object = channel;
    IS(-EBADF, ums_select(&one, 1, 0, 0)); /* another kind of object */
    one.kind = UMS_ARM_READABLE;
    one.fd = -1;
    IS(-EBADF, ums_select(&one, 1, 0, 0));
    twice[0] = twice[1] = arms[TASK];
    IS(-EBUSY, ums_select(twice, 2, 0, 0));

    IS(0, ums_spawn(select_long, NULL, &other));
    IS(-ETIMEDOUT, ums_task_join(other, MS, NULL));
    IS(-EBUSY, ums_task_join(task, 0, NULL)); /* the select waits for it */
    IS(-EBUSY, ums_semaphore_free(semaphore));
    IS(0, ums_task_cancel(other));
    IS(0, ums_task_join(other, UMS_FOREVER, &result));
    IS(-ECANCELED, (intptr_t)result);
    IS(-ETIMEDOUT, ums_task_join(task, 0, NULL)); /* it was put back */
}

static void *all(void *arg)
{
    IS(0, ums_spawn(wait_for_the_end, "its result", &task));
    arms[TASK].object = task;
    each_arm_happens();
    sends();
    choices();
    misuses();
    IS(0, ums_event_set(may_end));
    IS(0, ums_task_join(task, UMS_FOREVER, NULL));
    return arg;
}

int main(int argc, char **argv)
{
    ums_node *node = node_of(argc, argv, 1);
    IS(0, ums_channel_new(1, &channel));
    IS(0, ums_channel_new(1, &full));
    IS(0, ums_event_new(false, false, &event));
    IS(0, ums_event_new(false, false, &may_end));
    IS(0, ums_semaphore_new(0, &semaphore));
    IS(0, pipe2(ends, O_NONBLOCK | O_CLOEXEC));
    arms[RECV].kind = UMS_ARM_RECV;
    arms[RECV].object = channel;
    arms[EVENT].kind = UMS_ARM_EVENT;
    arms[EVENT].object = event;
    arms[SEMAPHORE].kind = UMS_ARM_SEMAPHORE;
    arms[SEMAPHORE].object = semaphore;
    arms[READABLE].kind = UMS_ARM_READABLE;
    arms[READABLE].fd = ends[0];
    arms[TASK].kind = UMS_ARM_TASK;
    IS(0, ums_node_run(node, all, NULL, NULL));

    /* A plain thread can wait for everything except a descriptor, at which it can look. */
    IS(-ETIMEDOUT, ums_select(arms, READABLE, 0, MS));
    IS(-EPERM, ums_select(arms, READABLE + 1, 0, MS));
    IS(-ETIMEDOUT, ums_select(arms, READABLE + 1, 0, 0));
    make_ready((void *)READABLE);
    IS(READABLE, ums_select(arms, READABLE + 1, 0, 0));
    IS(0, ums_node_spawn(node, make_ready, (void *)EVENT, NULL));
    IS(EVENT, ums_select(arms, READABLE, 0, UMS_FOREVER));
    IS(0, ums_node_free(node));
    IS(0, ums_channel_free(channel));
    IS(0, ums_channel_free(full));
    IS(0, ums_event_free(event));
    IS(0, ums_event_free(may_end));
    IS(0, ums_semaphore_free(semaphore));
    puts("ok");
    return 0;
}
