/* What programs for Windows use beside the scheduling functions: macros and annotations, bit scans,
 * a second handle for an object, priorities, the process's processors, waits on an address. */
#include <sal.h>

#include "wcheck.h"

#if !defined(_WIN64) || defined(__x86_64__) && !(defined(_AMD64_) && _M_AMD64 && _M_X64)
#error "programs recognise their processor by these"
#endif

static FORCEINLINE int twice(int n)
{
    return 2 * n;
}

FORCEINLINE int thrice(int n)
{
    return 3 * n;
}

_Function_class_(RTL_UMS_SCHEDULER_ENTRY_POINT)
_IRQL_requires_max_(PASSIVE_LEVEL) _Success_(return != 0) _Must_inspect_result_
static BOOL annotated(_In_ int n, _In_reads_bytes_opt_(n) const void *from,
                      _Out_writes_to_(n, *filled) int *to, _Outptr_result_maybenull_ void **what,
                      _When_(n > 0, _Inout_) DWORD *filled)
{
    _Analysis_assume_(n > 0);
    *what = NULL;
    *filled = (DWORD)n;
    return from == NULL && to != NULL;
}

static void macros(void)
{
    int to;
    void *what;
    DWORD filled;
    CHECK(twice(3) == 6 && thrice(3) == 9);
    CHECK(annotated(1, NULL, &to, &what, &filled) && filled == 1);
}

static void bits(void)
{
    DWORD at = 99;
    unsigned long wide = 99;
    CHECK(_BitScanForward(&at, 0x50) && at == 4 && _BitScanReverse(&at, 0x50) && at == 6);
    CHECK(!_BitScanForward(&at, 0) && at == 6);
    CHECK(_BitScanForward64(&wide, 1ull << 40) && wide == 40);
    CHECK(_BitScanReverse64(&wide, ~0ull) && wide == 63);
    CHECK(__popcnt(0xf0f) == 8 && __popcnt64(~0ull) == 64);
    char secret[32];
    memset(secret, 'x', sizeof secret);
    CHECK(SecureZeroMemory(secret, sizeof secret) == secret && secret[0] == 0 && secret[31] == 0);
}

static HANDLE again(HANDLE source, DWORD options)
{
    HANDLE made = NULL;
    CHECK(DuplicateHandle(GetCurrentProcess(), source, GetCurrentProcess(), &made, 0, FALSE,
                          options | DUPLICATE_SAME_ACCESS));
    CHECK(made != NULL && made != source);
    return made;
}

static DWORD WINAPI waits_for_its_creator(LPVOID creator)
{
    return WaitForSingleObject((HANDLE)creator, 0) == WAIT_TIMEOUT ? 7 : 0;
}

static void handles(void)
{
    HANDLE made = NULL;
    HANDLE event = CreateEvent(NULL, FALSE, FALSE, NULL);
    HANDLE other = again(event, 0);
    CHECK(SetEvent(event) && WaitForSingleObject(other, 0) == WAIT_OBJECT_0);
    CHECK(WaitForSingleObject(event, 0) == WAIT_TIMEOUT);
    CHECK(CloseHandle(event) && SetEvent(other)); /* it lives until the last handle is closed */
    HANDLE third = again(other, DUPLICATE_CLOSE_SOURCE);
    FAILS(ERROR_INVALID_HANDLE, SetEvent(other));
    CHECK(WaitForSingleObject(third, 0) == WAIT_OBJECT_0 && CloseHandle(third));

    HANDLE semaphore = CreateSemaphore(NULL, 1, 2, NULL);
    other = again(semaphore, 0);
    CHECK(WaitForSingleObject(other, 0) == WAIT_OBJECT_0 && ReleaseSemaphore(semaphore, 2, NULL));
    FAILS(ERROR_TOO_MANY_POSTS, ReleaseSemaphore(other, 1, NULL));
    CHECK(CloseHandle(semaphore) && CloseHandle(other));

    HANDLE mutex = CreateMutex(NULL, TRUE, NULL);
    other = again(mutex, 0);
    CHECK(ReleaseMutex(other));
    FAILS(ERROR_NOT_OWNER, ReleaseMutex(mutex));
    CHECK(CloseHandle(mutex) && CloseHandle(other));

    /* The calling thread, for another thread. */
    HANDLE me = again(GetCurrentThread(), 0);
    CHECK(GetThreadId(me) == GetCurrentThreadId());
    HANDLE thread = CreateThread(NULL, 0, waits_for_its_creator, me, 0, NULL);
    DWORD code = 0;
    CHECK(WaitForSingleObject(thread, INFINITE) == WAIT_OBJECT_0);
    CHECK(GetExitCodeThread(again(thread, 0), &code) && code == 7);
    CHECK(CloseHandle(thread) && CloseHandle(me));

    FAILS(ERROR_INVALID_HANDLE, DuplicateHandle(GetCurrentProcess(), thread, GetCurrentProcess(),
                                                &made, 0, FALSE, 0));
    FAILS(ERROR_NOT_SUPPORTED, DuplicateHandle(GetCurrentProcess(), GetCurrentProcess(),
                                               GetCurrentProcess(), &made, 0, FALSE, 0));
    FAILS(ERROR_NOT_SUPPORTED, DuplicateHandle(NULL, third, GetCurrentProcess(), &made, 0, 0, 0));
    CHECK(made == NULL);
}

static DWORD WINAPI has_all_processors(LPVOID arg)
{
    DWORD_PTR all = *(DWORD_PTR *)arg;
    return SetThreadAffinityMask(GetCurrentThread(), all) == all;
}

static void priorities_and_processors(void)
{
    DWORD_PTR mask = 0, system = 0;
    CHECK(GetThreadPriority(GetCurrentThread()) == THREAD_PRIORITY_NORMAL);
    CHECK(SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_HIGHEST));
    CHECK(GetThreadPriority(GetCurrentThread()) == THREAD_PRIORITY_HIGHEST);
    FAILS(ERROR_INVALID_PARAMETER, SetThreadPriority(GetCurrentThread(), 77));
    CHECK(GetThreadPriority(GetCurrentThread()) == THREAD_PRIORITY_HIGHEST);
    CHECK(SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_NORMAL));
    CHECK(GetThreadPriority(NULL) == THREAD_PRIORITY_ERROR_RETURN);
    CHECK(GetLastError() == ERROR_INVALID_HANDLE);

    CHECK(GetProcessAffinityMask(GetCurrentProcess(), &mask, &system));
    CHECK(mask != 0 && (mask & ~system) == 0);
    DWORD_PTR one = mask & -mask;
    CHECK(SetProcessAffinityMask(GetCurrentProcess(), one));
    CHECK(SetThreadAffinityMask(GetCurrentThread(), system) == one);
    CHECK(GetProcessAffinityMask(GetCurrentProcess(), &mask, NULL) && mask == one);
    FAILS(ERROR_INVALID_PARAMETER, SetProcessAffinityMask(GetCurrentProcess(), 0));
    FAILS(ERROR_INVALID_PARAMETER, SetProcessAffinityMask(GetCurrentProcess(), ~system));
    FAILS(ERROR_INVALID_HANDLE, SetProcessAffinityMask(NULL, one));
    CHECK(SetProcessAffinityMask(GetCurrentProcess(), system));

    /* A new thread has the processors of the process, and not those of its creator. */
    CHECK(SetThreadAffinityMask(GetCurrentThread(), one) == system);
    DWORD code = 0;
    HANDLE thread = CreateThread(NULL, 0, has_all_processors, &system, 0, NULL);
    CHECK(WaitForSingleObject(thread, INFINITE) == WAIT_OBJECT_0);
    CHECK(GetExitCodeThread(thread, &code) && code == 1 && CloseHandle(thread));
    CHECK(SetThreadAffinityMask(GetCurrentThread(), system) == one);
}

static volatile LONG ticks;

static VOID CALLBACK tick(PVOID parameter, BOOLEAN fired)
{
    CHECK(fired);
    if (InterlockedIncrement(&ticks) == 3) /* from inside, without waiting */
        CHECK(DeleteTimerQueueTimer(NULL, *(PHANDLE)parameter, NULL));
}

static void timers(void)
{
    HANDLE timer, done = CreateEvent(NULL, FALSE, FALSE, NULL);
    static HANDLE deletes_itself;
    CHECK(CreateTimerQueueTimer(&deletes_itself, NULL, tick, &deletes_itself, 100, 1, 0));
    while (ticks < 3)
        Sleep(1);
    CHECK(CreateTimerQueueTimer(&timer, NULL, tick, NULL, 1000000, 0, WT_EXECUTEONLYONCE));
    CHECK(DeleteTimerQueueTimer(NULL, timer, INVALID_HANDLE_VALUE));
    CHECK(CreateTimerQueueTimer(&timer, NULL, tick, NULL, 1000000, 0, 0));
    CHECK(DeleteTimerQueueTimer(NULL, timer, done));
    CHECK(WaitForSingleObject(done, INFINITE) == WAIT_OBJECT_0 && ticks == 3);
    FAILS(ERROR_NOT_SUPPORTED, CreateTimerQueueTimer(&timer, done, tick, NULL, 1, 0, 0));
    CHECK(CloseHandle(done));
}

static volatile LONG turn;
enum { TURNS = 2000 };

static DWORD WINAPI takes_turns(LPVOID arg)
{
    LONG mine = (LONG)(LONG_PTR)arg;
    for (int i = 0; i < TURNS; i++) {
        LONG seen;
        while ((seen = turn) % 2 != mine)
            CHECK(WaitOnAddress(&turn, &seen, sizeof turn, 60000));
        InterlockedIncrement(&turn);
        if (i % 2)
            WakeByAddressSingle((PVOID)&turn);
        else
            WakeByAddressAll((PVOID)&turn);
    }
    return 0;
}

static void addresses(void)
{
    HANDLE threads[2];
    LONGLONG word = 5, same = 5, other = 6;
    CHECK(WaitOnAddress(&word, &other, 8, INFINITE));
    FAILS(ERROR_TIMEOUT, WaitOnAddress(&word, &same, 8, 0));
    FAILS(ERROR_TIMEOUT, WaitOnAddress(&word, &same, 1, 20));
    FAILS(ERROR_INVALID_PARAMETER, WaitOnAddress(&word, &other, 3, INFINITE));
    FAILS(ERROR_INVALID_PARAMETER, WaitOnAddress((char *)&word + 1, &other, 4, INFINITE));
    FAILS(ERROR_INVALID_PARAMETER, WaitOnAddress(NULL, &other, 4, INFINITE));
    for (LONG_PTR i = 0; i < 2; i++)
        CHECK(threads[i] = CreateThread(NULL, 0, takes_turns, (LPVOID)i, 0, NULL));
    CHECK(WaitForMultipleObjects(2, threads, TRUE, INFINITE) == WAIT_OBJECT_0);
    CHECK(turn == 2 * TURNS);
}

int main(void)
{
    macros();
    bits();
    handles();
    priorities_and_processors();
    addresses();
    timers();
    puts("ok");
    return 0;
}
