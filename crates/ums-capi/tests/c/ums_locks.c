/*
 * An entry point takes a lock that a blocked worker holds. On Windows that is a deadlock, and it is
 * a mistake here, too. But here the library notices that the scheduler waits, and lets the worker
 * run until it has released the lock.
 */
#include <pthread.h>

#include "kit.h"

static PUMS_COMPLETION_LIST list;
static worker holder, other;
static queue ready;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CRITICAL_SECTION section;
static int over, taken;

static DWORD WINAPI holds_and_sleeps(LPVOID arg)
{
    (void)arg;
    for (int i = 0; i < 3; i++) {
        pthread_mutex_lock(&lock);
        EnterCriticalSection(&section);
        Sleep(5);
        LeaveCriticalSection(&section);
        pthread_mutex_unlock(&lock);
        UmsThreadYield(NULL);
    }
    return 1;
}

static DWORD WINAPI computes(LPVOID arg)
{
    (void)arg;
    for (int i = 0; i < 20; i++)
        UmsThreadYield(NULL);
    return 2;
}

static VOID NTAPI proc(UMS_SCHEDULER_REASON reason, ULONG_PTR payload, PVOID param)
{
    (void)param;
    if (reason == UmsSchedulerThreadYield)
        push(&ready, worker_of((PUMS_CONTEXT)payload));
    if (reason == UmsSchedulerThreadBlocked) {
        EnterCriticalSection(&section);
        LeaveCriticalSection(&section);
        pthread_mutex_lock(&lock);
        taken++;
        pthread_mutex_unlock(&lock);
    }
    while (over < 2) {
        over += drain(list, ready.first ? 0 : 20000, &ready);
        worker *w = pop(&ready);
        if (w) {
            ExecuteUmsThread(w->context);
            CHECK(GetLastError() == ERROR_RETRY);
            push(&ready, w);
        }
    }
}

int main(void)
{
    InitializeCriticalSection(&section);
    CHECK(CreateUmsCompletionList(&list));
    start_worker(&holder, list, holds_and_sleeps);
    start_worker(&other, list, computes);
    CHECK(enter(list, proc, NULL));
    CHECK(end_worker(&holder) == 1 && end_worker(&other) == 2);
    CHECK(DeleteUmsCompletionList(list));
    printf("the entry point took the lock %d times\n", taken);
    CHECK(taken >= 2);
    puts("ok");
    return 0;
}
