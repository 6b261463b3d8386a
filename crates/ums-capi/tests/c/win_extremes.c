/* Extreme sizes, counts and times of Windows' functions: each is refused with an error, or has its
 * literal meaning. A wait without time ends by itself; one with the longest time, and one without a
 * limit, last until they are woken. */
#include <limits.h>

#include "wcheck.h"

static const DWORD longest[] = { INFINITE, INFINITE - 1, 0x80000000u, 0x7fffffffu };

static HANDLE event;
static CRITICAL_SECTION section;
static SRWLOCK lock = SRWLOCK_INIT;
static CONDITION_VARIABLE changed = CONDITION_VARIABLE_INIT;
static volatile LONG set, wakes;

static DWORD WINAPI wake_soon(LPVOID arg)
{
    (void)arg;
    Sleep(1);
    InterlockedExchange(&wakes, 1);
    CHECK(SetEvent(event));
    InterlockedExchange(&set, 1);
    WakeByAddressAll((PVOID)&set);
    EnterCriticalSection(&section); /* so that a wait has begun, or sees that it is set */
    LeaveCriticalSection(&section);
    AcquireSRWLockExclusive(&lock);
    ReleaseSRWLockExclusive(&lock);
    WakeAllConditionVariable(&changed);
    return 0;
}

static BOOL for_one(DWORD ms) { return WaitForSingleObject(event, ms) == WAIT_OBJECT_0; }
static BOOL for_one_ex(DWORD ms) { return WaitForSingleObjectEx(event, ms, FALSE) == WAIT_OBJECT_0; }
static BOOL for_all(DWORD ms)
{
    return WaitForMultipleObjects(1, &event, TRUE, ms) == WAIT_OBJECT_0;
}
static BOOL for_any(DWORD ms)
{
    return WaitForMultipleObjectsEx(1, &event, FALSE, ms, FALSE) == WAIT_OBJECT_0;
}
static BOOL on_address(DWORD ms)
{
    LONG zero = 0;
    return WaitOnAddress(&set, &zero, sizeof zero, ms);
}
static BOOL in_section(DWORD ms)
{
    BOOL woken = TRUE;
    EnterCriticalSection(&section);
    while (woken && !set)
        woken = SleepConditionVariableCS(&changed, &section, ms);
    LeaveCriticalSection(&section);
    return woken;
}
static BOOL in_lock(DWORD ms)
{
    BOOL woken = TRUE;
    AcquireSRWLockExclusive(&lock);
    while (woken && !set)
        woken = SleepConditionVariableSRW(&changed, &lock, ms, 0);
    ReleaseSRWLockExclusive(&lock);
    return woken;
}

static void waits(void)
{
    BOOL (*const all[])(DWORD) = { for_one, for_one_ex, for_all, for_any,
                                   on_address, in_section, in_lock };
    for (size_t i = 0; i < ARRAYSIZE(all); i++) {
        CHECK(!all[i](0));
        CHECK(!all[i](1));
        for (size_t n = 0; n < ARRAYSIZE(longest); n++) {
            InterlockedExchange(&wakes, 0);
            HANDLE waker = CreateThread(NULL, 0, wake_soon, NULL, 0, NULL);
            CHECK(waker && all[i](longest[n]));
            CHECK(wakes);
            CHECK(WaitForSingleObject(waker, INFINITE) == WAIT_OBJECT_0 && CloseHandle(waker));
            CHECK(ResetEvent(event));
            InterlockedExchange(&set, 0);
        }
    }
    FAILS(ERROR_INVALID_PARAMETER, WaitForMultipleObjects(MAXDWORD, &event, TRUE, 0) != WAIT_FAILED);
    FAILS(ERROR_INVALID_PARAMETER, WaitForMultipleObjects(0, &event, TRUE, 0) != WAIT_FAILED);
    for (SIZE_T size = 0; size <= 3; size += 3)
        FAILS(ERROR_INVALID_PARAMETER, WaitOnAddress(&set, (PVOID)&set, size, 0));
    FAILS(ERROR_INVALID_PARAMETER, WaitOnAddress(&set, (PVOID)&set, (SIZE_T)-1, 0));
    Sleep(0);
    SleepEx(0, FALSE);
}

static void counts(void)
{
    const LONG bad[][2] = { { -1, 1 }, { 0, 0 }, { INT_MIN, 1 }, { 0, INT_MIN }, { 2, 1 } };
    for (size_t i = 0; i < ARRAYSIZE(bad); i++)
        FAILS(ERROR_INVALID_PARAMETER, CreateSemaphoreA(NULL, bad[i][0], bad[i][1], NULL) != NULL);
    LONG before = -1;
    HANDLE most = CreateSemaphoreA(NULL, INT_MAX, INT_MAX, NULL);
    CHECK(most);
    FAILS(ERROR_TOO_MANY_POSTS, ReleaseSemaphore(most, 1, NULL));
    FAILS(ERROR_TOO_MANY_POSTS, ReleaseSemaphore(most, INT_MAX, NULL));
    FAILS(ERROR_INVALID_PARAMETER, ReleaseSemaphore(most, 0, NULL));
    FAILS(ERROR_INVALID_PARAMETER, ReleaseSemaphore(most, INT_MIN, NULL));
    CHECK(WaitForSingleObject(most, 0) == WAIT_OBJECT_0);
    CHECK(ReleaseSemaphore(most, 1, &before) && before == INT_MAX - 1);
    CHECK(CloseHandle(most));
    SIZE_T size = 0;
    FAILS(ERROR_INVALID_PARAMETER, InitializeProcThreadAttributeList(NULL, MAXDWORD, 0, &size));
    FAILS(ERROR_INVALID_PARAMETER, TlsSetValue(MAXDWORD, NULL));
    FAILS(ERROR_INVALID_PARAMETER, TlsFree(MAXDWORD));
    FAILS(ERROR_INVALID_PARAMETER, TlsGetValue(MAXDWORD) != NULL);
    CRITICAL_SECTION spinning;
    CHECK(InitializeCriticalSectionAndSpinCount(&spinning, MAXDWORD));
    EnterCriticalSection(&spinning);
    LeaveCriticalSection(&spinning);
    DeleteCriticalSection(&spinning);
}

static void sizes(void)
{
    HANDLE heap = GetProcessHeap(), threads[2];
    const SIZE_T large[] = { (SIZE_T)-1, (SIZE_T)-1 / 2, ((SIZE_T)-1 / 2) + 1 };
    void *block = HeapAlloc(heap, 0, 0);
    CHECK(block);
    for (size_t i = 0; i < ARRAYSIZE(large); i++) {
        FAILS(ERROR_NOT_ENOUGH_MEMORY, HeapAlloc(heap, HEAP_ZERO_MEMORY, large[i]));
        FAILS(ERROR_NOT_ENOUGH_MEMORY, HeapReAlloc(heap, HEAP_ZERO_MEMORY, block, large[i]));
        FAILS(ERROR_NOT_ENOUGH_MEMORY, LocalAlloc(LPTR, large[i]));
    }
    CHECK(HeapFree(heap, 0, block));
    /* A thread gets at least the least stack; the system may have no room for the largest. */
    threads[0] = CreateThread(NULL, 1, wake_soon, NULL, 0, NULL);
    threads[1] = CreateThread(NULL, (SIZE_T)-1, wake_soon, NULL, 0, NULL);
    CHECK(threads[0]);
    for (size_t i = 0; i < ARRAYSIZE(threads); i++)
        CHECK(!threads[i] || (WaitForSingleObject(threads[i], INFINITE) == WAIT_OBJECT_0 &&
                              CloseHandle(threads[i])));
    FAILS(ERROR_INVALID_PARAMETER, SetThreadPriority(GetCurrentThread(), INT_MIN));
    FAILS(ERROR_INVALID_PARAMETER, SetThreadPriority(GetCurrentThread(), INT_MAX));
    CHECK(SetThreadAffinityMask(GetCurrentThread(), 0) == 0);
}

int main(void)
{
    event = CreateEventA(NULL, TRUE, FALSE, NULL);
    CHECK(event);
    InitializeCriticalSection(&section);
    waits();
    counts();
    sizes();
    CHECK(CloseHandle(event));
    puts("ok");
    return 0;
}
