/*
 * A worker blocks in the kernel in several ways. Each time the scheduler is called and other
 * workers run. The blocked worker runs no instruction until it is executed again.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kit.h"

enum { WAYS = 5, ROUNDS = 20 };

static PUMS_COMPLETION_LIST list;
static HANDLE completed, wakes;
static worker blocker, computer;
static queue ready;
static worker *running;
static int over, in_call, in_trap, yields, queued_again;
static int fds[2];
static volatile LONG want_wake, blocked_way = -1, done;
/* Set by the worker when it continues, and read by the entry point, which knows which worker may
 * run. */
static volatile LONG has_continued;

static void block(int way)
{
    char letter;
    struct timespec nap = { 0, 2000000 };
    switch (way) {
    case 0: CHECK(read(fds[0], &letter, 1) == 1); break;
    case 1: CHECK(nanosleep(&nap, NULL) == 0); break;
    case 2: CHECK(WaitForSingleObject(wakes, INFINITE) == WAIT_OBJECT_0); break;
    case 3: Sleep(2); break;
    case 4: {
        char text[2];
        CHECK(read(fds[0], text, 1) == 1); /* read again, with another buffer */
        break;
    }
    }
}

static DWORD WINAPI blocks(LPVOID arg)
{
    (void)arg;
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++) {
            has_continued = 0;
            blocked_way = way;
            InterlockedExchange(&want_wake, way + 1);
            block(way);
            has_continued = 1;
        }
    done = 1;
    return 5;
}

static DWORD WINAPI computes(LPVOID arg)
{
    (void)arg;
    while (!done) {
        for (volatile int i = 0; i < 2000; i++)
            ;
        UmsThreadYield(NULL);
    }
    return 6;
}

/* Runs on a plain thread on another processor: ends each block that does not end by itself. */
static DWORD WINAPI wakes_up(LPVOID arg)
{
    (void)arg;
    while (!done) {
        LONG way = InterlockedExchange(&want_wake, 0) - 1;
        Sleep(1);
        if (way == 0 || way == 4)
            CHECK(write(fds[1], "x", 1) == 1);
        else if (way == 2)
            CHECK(SetEvent(wakes));
    }
    return 0;
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    if (reason == UmsSchedulerThreadYield) {
        CHECK(running == &computer && (PUMS_CONTEXT)payload == computer.context);
        yields++;
        push(&ready, running);
    } else if (reason == UmsSchedulerThreadBlocked) {
        CHECK(param == NULL && payload <= 1 && running != NULL);
        if (payload)
            in_call++;
        else
            in_trap++;
    }
    running = NULL;
    for (;;) {
        int before = over;
        over += drain(list, 0, &ready);
        if (over == 2)
            return;
        worker *w = pop(&ready);
        if (w == NULL) {
            if (over == before)
                CHECK(WaitForSingleObject(completed, 20000) == WAIT_OBJECT_0);
            continue;
        }
        if (w == &blocker && blocked_way >= 0 && !done) {
            /* The worker has woken and is on the queue. It must not have continued yet. */
            CHECK(!has_continued);
            queued_again++;
        }
        running = w;
        ExecuteUmsThread(w->context);
        CHECK(GetLastError() == ERROR_RETRY);
        push(&ready, w);
    }
}

int main(void)
{
    CHECK(pipe2(fds, O_CLOEXEC) == 0);
    CHECK(CreateUmsCompletionList(&list) && GetUmsCompletionListEvent(list, &completed));
    wakes = CreateEvent(NULL, FALSE, FALSE, NULL);
    start_worker(&blocker, list, blocks);
    start_worker(&computer, list, computes);
    HANDLE helper = CreateThread(NULL, 0, wakes_up, NULL, 0, NULL);
    CHECK(enter(list, proc, NULL));
    CHECK(end_worker(&blocker) == 5 && end_worker(&computer) == 6);
    CHECK(WaitForSingleObject(helper, 20000) == WAIT_OBJECT_0);
    CHECK(CloseHandle(helper) && CloseHandle(wakes) && CloseHandle(completed));
    CHECK(DeleteUmsCompletionList(list));
    printf("%d blocks in calls, %d in traps, %d came back, %d yields\n", in_call, in_trap,
           queued_again, yields);
    /* Some blocks end before they can be noticed; most do not. */
    CHECK(queued_again > ROUNDS * WAYS / 2 && yields > 0);
    CHECK(in_call > ROUNDS);
    puts("ok");
    return 0;
}
