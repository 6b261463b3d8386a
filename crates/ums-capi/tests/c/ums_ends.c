/* Workers end in every possible way, schedulers leave scheduling mode for every reason, and at
 * the end lists are freed. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kit.h"

enum { WAYS = 6 };

static PUMS_COMPLETION_LIST list;
static worker workers[WAYS];
static queue ready;
static worker *running;
static int over, told_of_end;
static DWORD tls;
static volatile LONG tls_ended;

static VOID WINAPI count_end(PVOID value)
{
    CHECK(value == (PVOID)3);
    InterlockedIncrement(&tls_ended);
}

static DWORD WINAPI end_somehow(LPVOID arg)
{
    worker *me = (worker *)arg;
    CHECK(FlsSetValue(tls, (PVOID)3));
    CHECK(GetCurrentUmsThread() == me->context);
    switch (me->number) {
    case 0: return 10;
    case 1: ExitThread(11);
    case 2: pthread_exit(NULL); /* its exit code is 0 */
    case 3: TerminateThread(GetCurrentThread(), 13); break;
    case 4: UmsThreadYield(NULL); return 14;
    case 5: {
        /* The child of a fork has no other threads, and may call _exit. */
        int status = 0;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(15);
        CHECK(waitpid(child, &status, 0) == child);
        return (DWORD)WEXITSTATUS(status);
    }
    }
    return 99;
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)param;
    if (reason == UmsSchedulerThreadYield)
        push(&ready, worker_of((PUMS_CONTEXT)payload));
    else if (reason == UmsSchedulerThreadBlocked && is_terminated(running->context))
        told_of_end++;
    for (;;) {
        over += drain(list, 0, &ready);
        if (over == WAYS)
            return;
        worker *w = pop(&ready);
        if (w == NULL) {
            over += drain(list, 20000, &ready);
            continue;
        }
        running = w;
        ExecuteUmsThread(w->context);
        CHECK(GetLastError() == ERROR_RETRY);
        push(&ready, w);
    }
}

static VOID NTAPI leaves_at_once(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    CHECK(reason == UmsSchedulerStartup && payload == 0);
    ++*(int *)param;
}

static int leave_for;

/* Executes one worker. Leaves scheduling mode when the entry point is called for the requested
 * reason. */
static VOID NTAPI leaves_for(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)param;
    if ((int)reason == leave_for)
        return;
    if (reason == UmsSchedulerThreadYield)
        push(&ready, worker_of((PUMS_CONTEXT)payload));
    for (;;) {
        over += drain(list, ready.first ? 0 : 20000, &ready);
        if (over)
            return;
        worker *w = pop(&ready);
        if (w) {
            ExecuteUmsThread(w->context);
            CHECK(GetLastError() == ERROR_RETRY);
            push(&ready, w);
        }
    }
}

static DWORD WINAPI yields_or_sleeps(LPVOID arg)
{
    if (((worker *)arg)->number)
        CHECK(UmsThreadYield(NULL));
    else
        Sleep(30);
    return 0;
}

static void leaving(void)
{
    int calls = 0;
    CHECK(enter(list, leaves_at_once, &calls) && calls == 1);
    CHECK(enter(list, leaves_at_once, &calls) && calls == 2); /* a second time */
    for (int yields = 0; yields < 2; yields++) {
        worker w;
        memset(&ready, 0, sizeof ready);
        w.number = yields;
        over = 0;
        start_worker(&w, list, yields_or_sleeps);
        leave_for = yields ? UmsSchedulerThreadYield : UmsSchedulerThreadBlocked;
        CHECK(enter(list, leaves_for, NULL));
        /* The worker has not moved. It can be executed when the thread is in scheduling mode
         * again. */
        CHECK(!is_terminated(w.context));
        if (yields)
            push(&ready, &w);
        leave_for = -1;
        CHECK(enter(list, leaves_for, NULL));
        CHECK(end_worker(&w) == 0);
    }
}

static VOID NTAPI exits_inside(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)reason;
    (void)payload;
    (void)param;
    ExitThread(77);
}

static DWORD WINAPI scheduler_that_exits(LPVOID arg)
{
    enter(list, exits_inside, arg);
    return 0;
}

static void exiting(void)
{
    for (int i = 0; i < 3; i++) {
        DWORD code = 0;
        HANDLE thread = CreateThread(NULL, 0, scheduler_that_exits, NULL, 0, NULL);
        CHECK(thread && WaitForSingleObject(thread, 20000) == WAIT_OBJECT_0);
        CHECK(GetExitCodeThread(thread, &code) && code == 77);
        CHECK(CloseHandle(thread));
    }
}

static int feed[2];
static volatile LONG cleaned_up, cleaned_outside;
static pthread_t to_cancel;

/* A clean-up routine is code of the worker: it must run only after a scheduler has executed the
 * worker. */
static void clean_up(void *me)
{
    if (running != me)
        InterlockedIncrement(&cleaned_outside);
    InterlockedIncrement(&cleaned_up);
}

static DWORD WINAPI blocks_until_cancelled(LPVOID arg)
{
    char byte;
    to_cancel = pthread_self();
    pthread_cleanup_push(clean_up, arg);
    while (read(feed[0], &byte, 1) != 0) {
    }
    pthread_cleanup_pop(0);
    return 0;
}

static DWORD WINAPI computes_beside(LPVOID arg)
{
    /* In this time the other worker is cancelled, and reaches its gate. */
    ULONGLONG end = GetTickCount64() + 100;
    (void)arg;
    while (GetTickCount64() < end) {
    }
    return 0;
}

static void *cancels(void *arg)
{
    (void)arg;
    usleep(30000);
    CHECK(pthread_cancel(to_cancel) == 0);
    return NULL;
}

static VOID NTAPI until_both_are_over(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)reason;
    (void)payload;
    (void)param;
    running = NULL;
    while (over < 2) {
        worker *w = pop(&ready);
        if (w == NULL) {
            over += drain(list, 20000, &ready);
            continue;
        }
        running = w;
        ExecuteUmsThread(w->context);
        CHECK(GetLastError() == ERROR_RETRY);
        push(&ready, w);
    }
}

/* A thread is cancelled while it blocks. It wakes, stops at its gate, and unwinds when it is
 * executed. If only interposed calls are noticed, the thread unwinds out of such a call before it
 * can be gated. */
static void cancelling(void)
{
    const char *watch = getenv("UMS_WATCH");
    if (watch && strcmp(watch, "calls") == 0)
        return;
    worker blocker, other;
    pthread_t canceller;
    memset(&ready, 0, sizeof ready);
    over = 0;
    CHECK(pipe(feed) == 0);
    blocker.number = other.number = 0;
    start_worker(&blocker, list, blocks_until_cancelled);
    start_worker(&other, list, computes_beside);
    CHECK(pthread_create(&canceller, NULL, cancels, NULL) == 0);
    CHECK(enter(list, until_both_are_over, NULL));
    CHECK(pthread_join(canceller, NULL) == 0);
    CHECK(cleaned_up == 1 && cleaned_outside == 0);
    end_worker(&blocker);
    CHECK(end_worker(&other) == 0);
}

int main(void)
{
    DWORD expected[WAYS] = { 10, 11, 0, 13, 14, 15 };
    tls = FlsAlloc(count_end);
    CHECK(CreateUmsCompletionList(&list));
    for (int i = 0; i < WAYS; i++) {
        workers[i].number = i;
        start_worker(&workers[i], list, end_somehow);
    }
    CHECK(enter(list, proc, NULL));
    CHECK(over == WAYS && told_of_end == WAYS);
    for (int i = 0; i < WAYS; i++)
        CHECK(end_worker(&workers[i]) == expected[i]);
    CHECK(tls_ended == WAYS);
    leaving();
    exiting();
    leaving();
    cancelling();
    CHECK(DeleteUmsCompletionList(list));
    puts("ok");
    return 0;
}
