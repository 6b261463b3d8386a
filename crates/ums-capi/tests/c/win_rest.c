/* Heap, clocks, interlocked operations, the attribute list, layouts. */
#include <intrin.h>

#include "wcheck.h"

#define SAME(type, size) _Static_assert(sizeof(type) == (size), #type)
SAME(LONG, 4);
SAME(DWORD, 4);
SAME(BOOL, 4);
SAME(ULONG_PTR, 8);
SAME(LARGE_INTEGER, 8);
SAME(CRITICAL_SECTION, 40);
SAME(SRWLOCK, 8);
SAME(CONDITION_VARIABLE, 8);
SAME(INIT_ONCE, 8);
SAME(SLIST_HEADER, 16);
SAME(SLIST_ENTRY, 16);
SAME(SYSTEM_INFO, 48);
SAME(UMS_CREATE_THREAD_ATTRIBUTES, 24);
SAME(UMS_SCHEDULER_STARTUP_INFO, 32);
SAME(UMS_SYSTEM_THREAD_INFORMATION, 8);
_Static_assert(UMS_VERSION == 0x0100, "version");
_Static_assert(UmsSchedulerThreadYield == 2 && UmsThreadMaxInfoClass == 7, "numbers");
_Static_assert(PROC_THREAD_ATTRIBUTE_UMS_THREAD == 0x00030006, "attribute");
_Static_assert(offsetof(UMS_SCHEDULER_STARTUP_INFO, SchedulerParam) == 24, "offset");

static void memory(void)
{
    HANDLE heap = GetProcessHeap();
    BYTE *block = (BYTE *)HeapAlloc(heap, HEAP_ZERO_MEMORY, 1000);
    CHECK(heap && block);
    for (int i = 0; i < 1000; i++)
        CHECK(block[i] == 0);
    FillMemory(block, 1000, 7);
    CHECK(HeapSize(heap, 0, block) >= 1000);
    block = (BYTE *)HeapReAlloc(heap, HEAP_ZERO_MEMORY, block, 100000);
    CHECK(block && block[999] == 7 && block[99999] == 0);
    CHECK(HeapFree(heap, 0, block) && HeapFree(heap, 0, NULL));
    FAILS(ERROR_NOT_ENOUGH_MEMORY, HeapAlloc(heap, 0, (SIZE_T)1 << 60));
    CHECK(LocalFree(LocalAlloc(LPTR, 10)) == NULL);
}

static void time_passes(void)
{
    LARGE_INTEGER frequency, before, after;
    FILETIME time;
    CHECK(QueryPerformanceFrequency(&frequency) && frequency.QuadPart > 0);
    CHECK(QueryPerformanceCounter(&before));
    DWORD ticks = GetTickCount();
    Sleep(20);
    SleepEx(0, TRUE);
    CHECK(QueryPerformanceCounter(&after));
    CHECK((after.QuadPart - before.QuadPart) * 1000 / frequency.QuadPart >= 20);
    CHECK(GetTickCount() - ticks >= 19 && GetTickCount64() > 0);
    GetSystemTimeAsFileTime(&time);
    /* The time is after 2020 and before 2100, in units of about 429 s. */
    CHECK(time.dwHighDateTime > 30779000u && time.dwHighDateTime < 36700000u);
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    CHECK(info.dwNumberOfProcessors >= 1 && info.dwPageSize >= 4096);
    CHECK(SetThreadAffinityMask(GetCurrentThread(), 1ull << GetCurrentProcessorNumber()) != 0);
    CHECK(SetThreadPriority(GetCurrentThread(), THREAD_PRIORITY_NORMAL));
    FAILS(ERROR_INVALID_PARAMETER, SetThreadPriority(GetCurrentThread(), 77));
    CHECK(__rdtsc() != 0);
    YieldProcessor();
    MemoryBarrier();
}

static void interlocked(void)
{
    volatile LONG n = 5;
    volatile long wide = 1;
    volatile LONGLONG wider = 1;
    int a, b;
    PVOID volatile p = &a;
    CHECK(InterlockedIncrement(&n) == 6 && InterlockedDecrement(&n) == 5);
    CHECK(InterlockedExchange(&n, 9) == 5 && InterlockedExchangeAdd(&n, 1) == 9);
    CHECK(InterlockedCompareExchange(&n, 20, 10) == 10 && n == 20);
    CHECK(InterlockedCompareExchange(&n, 30, 10) == 20 && n == 20);
    CHECK(InterlockedOr(&n, 1) == 20 && InterlockedAnd(&n, 1) == 21 && n == 1);
    CHECK(InterlockedIncrement(&wide) == 2 && InterlockedAdd64(&wider, 4) == 5);
    CHECK(InterlockedExchangePointer(&p, &b) == &a);
    CHECK(InterlockedCompareExchangePointer(&p, NULL, &b) == &b && p == NULL);
    CHECK(InterlockedBitTestAndSet(&n, 3) == 0 && InterlockedBitTestAndSet(&n, 3) == 1 && n == 9);
}

static DWORD WINAPI nothing(LPVOID arg)
{
    (void)arg;
    return 0;
}

static void attributes(void)
{
    SIZE_T size = 0;
    UMS_CREATE_THREAD_ATTRIBUTES ums = { UMS_VERSION, &ums, &ums };
    FAILS(ERROR_INSUFFICIENT_BUFFER, InitializeProcThreadAttributeList(NULL, 1, 0, &size));
    CHECK(size > 0);
    SIZE_T small = size - 1;
    char *memory = (char *)malloc(size + 1); /* it need not be aligned */
    LPPROC_THREAD_ATTRIBUTE_LIST list = (LPPROC_THREAD_ATTRIBUTE_LIST)(memory + 1);
    FAILS(ERROR_INSUFFICIENT_BUFFER, InitializeProcThreadAttributeList(list, 1, 0, &small));
    FAILS(ERROR_INVALID_PARAMETER, InitializeProcThreadAttributeList(list, 1, 0, NULL));
    FAILS(ERROR_INVALID_PARAMETER, InitializeProcThreadAttributeList(list, 1, 1, &size));
    memset(list, 0, size);
    FAILS(ERROR_INVALID_PARAMETER,
          UpdateProcThreadAttribute(list, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &ums, sizeof ums,
                                    NULL, NULL)); /* not initialised */
    CHECK(InitializeProcThreadAttributeList(list, 1, 0, &size));
    FAILS(ERROR_BAD_LENGTH,
          UpdateProcThreadAttribute(list, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &ums,
                                    sizeof ums - 1, NULL, NULL));
    FAILS(ERROR_NOT_SUPPORTED,
          UpdateProcThreadAttribute(list, 0, 0x00020000, &ums, sizeof ums, NULL, NULL));
    ums.UmsVersion = 0x0200;
    CHECK(UpdateProcThreadAttribute(list, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &ums, sizeof ums,
                                    NULL, NULL));
    FAILS(ERROR_GEN_FAILURE,
          UpdateProcThreadAttribute(list, 0, PROC_THREAD_ATTRIBUTE_UMS_THREAD, &ums, sizeof ums,
                                    NULL, NULL)); /* full */
    FAILS(ERROR_INVALID_PARAMETER, CreateRemoteThreadEx(GetCurrentProcess(), NULL, 0, nothing, NULL,
                                                        0, list, NULL) != NULL); /* version */
    DeleteProcThreadAttributeList(list);
    FAILS(ERROR_INVALID_PARAMETER, CreateRemoteThreadEx(GetCurrentProcess(), NULL, 0, nothing, NULL,
                                                        0, list, NULL) != NULL);
    DeleteProcThreadAttributeList(NULL);
    free(memory);
}

int main(void)
{
    memory();
    time_passes();
    interlocked();
    attributes();
    puts("ok");
    return 0;
}
