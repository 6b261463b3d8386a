/* Critical sections, slim locks, condition variables, one-time calls, lists, thread-local values. */
#include <process.h>
#include <pthread.h>

#include "wcheck.h"

enum { THREADS = 4, ROUNDS = 20000 };

static CRITICAL_SECTION section;
static SRWLOCK slim = SRWLOCK_INIT;
static CONDITION_VARIABLE changed = CONDITION_VARIABLE_INIT;
static INIT_ONCE once = INIT_ONCE_STATIC_INIT;
static SLIST_HEADER list;
static long in_section, in_slim, once_calls, ready;
static volatile LONG popped, read_wrong;
static DWORD tls, fls;
static volatile LONG ended;

typedef struct {
    SLIST_ENTRY entry; /* the first field, so that a pointer to the entry is a pointer to the item */
    int number;
} ITEM;

static BOOL WINAPI call_once(PINIT_ONCE o, PVOID parameter, PVOID *context)
{
    (void)o;
    (void)context;
    ++*(long *)parameter;
    Sleep(5);
    return TRUE;
}

static VOID WINAPI at_the_end(PVOID value)
{
    CHECK(value == (PVOID)11);
    InterlockedIncrement(&ended);
}

static unsigned __stdcall work(void *arg)
{
    ITEM *item = NULL;
    CHECK(TlsGetValue(tls) == NULL);
    CHECK(TlsSetValue(tls, arg) && FlsSetValue(fls, (PVOID)11));
    CHECK(InitOnceExecuteOnce(&once, call_once, &once_calls, NULL));
    CHECK(once_calls == 1);
    for (int i = 0; i < ROUNDS; i++) {
        EnterCriticalSection(&section);
        EnterCriticalSection(&section);
        in_section++;
        LeaveCriticalSection(&section);
        LeaveCriticalSection(&section);
        if (i % 4 == 0) {
            AcquireSRWLockExclusive(&slim);
            in_slim++;
            if (i % 100 == 0)
                SwitchToThread();
            in_slim++;
            ReleaseSRWLockExclusive(&slim);
        } else {
            AcquireSRWLockShared(&slim);
            if (in_slim % 2)
                InterlockedIncrement(&read_wrong);
            ReleaseSRWLockShared(&slim);
        }
        if (item == NULL)
            item = (ITEM *)InterlockedPopEntrySList(&list);
        else {
            InterlockedPushEntrySList(&list, &item->entry);
            item = NULL;
        }
    }
    if (item)
        InterlockedPushEntrySList(&list, &item->entry);
    EnterCriticalSection(&section);
    while (!ready)
        CHECK(SleepConditionVariableCS(&changed, &section, INFINITE));
    LeaveCriticalSection(&section);
    CHECK(TlsGetValue(tls) == arg);
    return 0;
}

/* A key that TlsAlloc did not make is left alone. */
static void not_ours(void)
{
    pthread_key_t key;
    CHECK(pthread_key_create(&key, NULL) == 0 && pthread_setspecific(key, &key) == 0);
    FAILS(ERROR_INVALID_PARAMETER, TlsFree(key));
    FAILS(ERROR_INVALID_PARAMETER, FlsFree(key));
    FAILS(ERROR_INVALID_PARAMETER, TlsSetValue(key, NULL));
    CHECK(TlsGetValue(key) == NULL);
    CHECK(pthread_getspecific(key) == &key);
    CHECK(pthread_key_delete(key) == 0);
    FAILS(ERROR_INVALID_PARAMETER, TlsFree(9999));
    FAILS(ERROR_INVALID_PARAMETER, TlsFree(TLS_OUT_OF_INDEXES));
}

int main(void)
{
    HANDLE threads[THREADS];
    ITEM *items = (ITEM *)_aligned_malloc(3 * sizeof *items, MEMORY_ALLOCATION_ALIGNMENT);

    CHECK(InitializeCriticalSectionAndSpinCount(&section, 100));
    InitializeSListHead(&list);
    for (int i = 0; i < 3; i++)
        InterlockedPushEntrySList(&list, &items[i].entry);
    CHECK(QueryDepthSList(&list) == 3);
    tls = TlsAlloc();
    fls = FlsAlloc(at_the_end);
    CHECK(tls != TLS_OUT_OF_INDEXES && fls != FLS_OUT_OF_INDEXES && tls != fls);
    CHECK(TryEnterCriticalSection(&section) && TryEnterCriticalSection(&section));
    LeaveCriticalSection(&section);
    LeaveCriticalSection(&section);
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (HANDLE)_beginthreadex(NULL, 0, work, &threads[i], 0, NULL);
        CHECK(threads[i] != NULL);
    }
    CHECK(WaitForMultipleObjects(THREADS, threads, TRUE, 100) == WAIT_TIMEOUT);
    AcquireSRWLockShared(&slim);
    CHECK(TryAcquireSRWLockShared(&slim));
    CHECK(!TryAcquireSRWLockExclusive(&slim));
    ReleaseSRWLockShared(&slim);
    /* A wait may also end without a cause. */
    while (SleepConditionVariableSRW(&changed, &slim, 5, CONDITION_VARIABLE_LOCKMODE_SHARED))
        ;
    CHECK(GetLastError() == ERROR_TIMEOUT);
    ReleaseSRWLockShared(&slim);
    EnterCriticalSection(&section);
    ready = 1;
    LeaveCriticalSection(&section);
    WakeAllConditionVariable(&changed);
    CHECK(WaitForMultipleObjects(THREADS, threads, TRUE, INFINITE) == WAIT_OBJECT_0);
    for (int i = 0; i < THREADS; i++)
        CHECK(CloseHandle(threads[i]));
    CHECK(in_section == THREADS * ROUNDS);
    CHECK(in_slim == THREADS * ROUNDS / 2);
    CHECK(read_wrong == 0 && once_calls == 1 && ended == THREADS);
    for (PSLIST_ENTRY e = InterlockedFlushSList(&list); e; e = e->Next)
        popped++;
    CHECK(popped == 3 && InterlockedPopEntrySList(&list) == NULL);
    CHECK(TlsFree(tls) && FlsFree(fls));
    FAILS(ERROR_INVALID_PARAMETER, TlsFree(tls));
    not_ours();
    FAILS(ERROR_INVALID_PARAMETER, TlsSetValue(9999, NULL));
    DeleteCriticalSection(&section);
    _aligned_free(items);
    puts("ok");
    return 0;
}
