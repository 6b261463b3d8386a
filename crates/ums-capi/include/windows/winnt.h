/*
 * winnt.h for Linux: the structures and constants that the functions use, and the interlocked
 * operations.
 *
 * The interlocked operations accept a pointer to any integer or pointer, because `long` in a
 * Windows program is not LONG here.
 */
#ifndef UMS_WINNT_H
#define UMS_WINNT_H
#pragma once

#include "windef.h"

typedef union _LARGE_INTEGER {
    __extension__ struct {
        DWORD LowPart;
        LONG HighPart;
    };
    struct {
        DWORD LowPart;
        LONG HighPart;
    } u;
    LONGLONG QuadPart;
} LARGE_INTEGER, *PLARGE_INTEGER;

typedef union _ULARGE_INTEGER {
    __extension__ struct {
        DWORD LowPart;
        DWORD HighPart;
    };
    struct {
        DWORD LowPart;
        DWORD HighPart;
    } u;
    ULONGLONG QuadPart;
} ULARGE_INTEGER, *PULARGE_INTEGER;

typedef struct _LIST_ENTRY {
    struct _LIST_ENTRY *Flink, *Blink;
} LIST_ENTRY, *PLIST_ENTRY;

typedef struct _SINGLE_LIST_ENTRY {
    struct _SINGLE_LIST_ENTRY *Next;
} SINGLE_LIST_ENTRY, *PSINGLE_LIST_ENTRY;

typedef struct _PROCESSOR_NUMBER {
    WORD Group;
    BYTE Number;
    BYTE Reserved;
} PROCESSOR_NUMBER, *PPROCESSOR_NUMBER;

typedef struct _GROUP_AFFINITY {
    KAFFINITY Mask;
    WORD Group;
    WORD Reserved[3];
} GROUP_AFFINITY, *PGROUP_AFFINITY;

/* The reasons for which the entry point of EnterUmsSchedulingMode is called. */
typedef enum _RTL_UMS_SCHEDULER_REASON {
    UmsSchedulerStartup = 0,
    UmsSchedulerThreadBlocked,
    UmsSchedulerThreadYield
} RTL_UMS_SCHEDULER_REASON, *PRTL_UMS_SCHEDULER_REASON;

/* The information about a worker that can be queried and set. */
typedef enum _RTL_UMS_THREAD_INFO_CLASS {
    UmsThreadInvalidInfoClass = 0,
    UmsThreadUserContext,
    UmsThreadPriority,
    UmsThreadAffinity,
    UmsThreadTeb,
    UmsThreadIsSuspended,
    UmsThreadIsTerminated,
    UmsThreadMaxInfoClass
} RTL_UMS_THREAD_INFO_CLASS, *PRTL_UMS_THREAD_INFO_CLASS;

/* A class of QueryUmsThreadInformation that Windows does not have. Windows keeps these numbers
 * but does not report them. */
#define UmsThreadCounts ((RTL_UMS_THREAD_INFO_CLASS)0x100)
typedef struct _UMS_THREAD_COUNTS {
    ULONGLONG SwitchCount;      /* executions */
    ULONGLONG YieldCount;       /* yields in user mode */
    ULONGLONG KernelYieldCount; /* yields by a system call */
    ULONGLONG MixedYieldCount;  /* kernel yields of an own-context worker that was ending */
} UMS_THREAD_COUNTS, *PUMS_THREAD_COUNTS;

#define RTL_UMS_VERSION 0x0100

typedef VOID NTAPI RTL_UMS_SCHEDULER_ENTRY_POINT(RTL_UMS_SCHEDULER_REASON Reason,
                                                 ULONG_PTR ActivationPayload, PVOID SchedulerParam);
typedef RTL_UMS_SCHEDULER_ENTRY_POINT *PRTL_UMS_SCHEDULER_ENTRY_POINT;

typedef struct _UMS_CREATE_THREAD_ATTRIBUTES {
    DWORD UmsVersion;
    PVOID UmsContext;
    PVOID UmsCompletionList;
} UMS_CREATE_THREAD_ATTRIBUTES, *PUMS_CREATE_THREAD_ATTRIBUTES;

#define STATUS_WAIT_0 0u
#define STATUS_ABANDONED_WAIT_0 0x80u
#define STATUS_TIMEOUT 0x102u
#define STATUS_PENDING 0x103u
#define DELETE 0x00010000u
#define SYNCHRONIZE 0x00100000u
#define STANDARD_RIGHTS_REQUIRED 0x000f0000u
#define THREAD_SUSPEND_RESUME 0x0002u
#define THREAD_QUERY_INFORMATION 0x0040u
#define THREAD_ALL_ACCESS 0x001fffffu
#define EVENT_MODIFY_STATE 0x0002u
#define EVENT_ALL_ACCESS 0x001f0003u
#define HEAP_NO_SERIALIZE 0x00000001u
#define HEAP_GENERATE_EXCEPTIONS 0x00000004u
#define HEAP_ZERO_MEMORY 0x00000008u
#define PROCESSOR_ARCHITECTURE_AMD64 9
#define MAXIMUM_WAIT_OBJECTS 64
#define MEMORY_ALLOCATION_ALIGNMENT 16
#define ANYSIZE_ARRAY 1

#define DLL_PROCESS_DETACH 0
#define DLL_PROCESS_ATTACH 1
#define DLL_THREAD_ATTACH 2
#define DLL_THREAD_DETACH 3
#define LANG_NEUTRAL 0
#define LANG_ENGLISH 9
#define SUBLANG_DEFAULT 1
#define SUBLANG_NEUTRAL 0
#define MAKELANGID(language, sublanguage) ((WORD)((WORD)(sublanguage) << 10 | (WORD)(language)))

#define UNREFERENCED_PARAMETER(p) ((void)(p))
#define DBG_UNREFERENCED_PARAMETER(p) ((void)(p))
#define FIELD_OFFSET(type, field) ((LONG)offsetof(type, field))
#define CONTAINING_RECORD(address, type, field) \
    ((type *)((char *)(address) - offsetof(type, field)))
#ifndef ARRAYSIZE
#define ARRAYSIZE(a) (sizeof(a) / sizeof((a)[0]))
#endif
#define RTL_NUMBER_OF(a) ARRAYSIZE(a)
#ifndef _countof
#define _countof(a) ARRAYSIZE(a)
#endif
#define C_ASSERT(what) typedef char ums_c_assert_[(what) ? 1 : -1] __attribute__((unused))

#define RtlZeroMemory(to, n) __builtin_memset((to), 0, (n))
#define RtlCopyMemory(to, from, n) __builtin_memcpy((to), (from), (n))
#define RtlMoveMemory(to, from, n) __builtin_memmove((to), (from), (n))
#define RtlFillMemory(to, n, byte) __builtin_memset((to), (byte), (n))

/* Clears memory that is not read again, which memset need not do. */
static inline PVOID RtlSecureZeroMemory(PVOID to, SIZE_T n)
{
    __builtin_memset(to, 0, n);
    __asm__ volatile("" : : "r"(to) : "memory");
    return to;
}

/* The lowest or highest bit that is set. False, and no index, if there is none. In C++ these, and
 * InterlockedCompareExchange, are functions, because programs call them with `::` in front. */
#ifdef __cplusplus
#define UMS_BIT_SCAN(name, type, bit)                                                          \
    extern "C++" template <typename Index> inline BOOLEAN name(Index *index, type mask)        \
    {                                                                                          \
        if (mask != 0)                                                                         \
            *index = (bit);                                                                    \
        return mask != 0;                                                                      \
    }
UMS_BIT_SCAN(_BitScanForward, ULONG, (ULONG)__builtin_ctz(mask))
UMS_BIT_SCAN(_BitScanReverse, ULONG, 31 - (ULONG)__builtin_clz(mask))
UMS_BIT_SCAN(_BitScanForward64, ULONGLONG, (ULONG)__builtin_ctzll(mask))
UMS_BIT_SCAN(_BitScanReverse64, ULONGLONG, 63 - (ULONG)__builtin_clzll(mask))
#else
#define UMS_BIT_SCAN(index, mask, type, bit)                                                   \
    __extension__({                                                                            \
        type ums_mask_ = (type)(mask);                                                         \
        if (ums_mask_ != 0)                                                                    \
            *(index) = (bit);                                                                  \
        (BOOLEAN)(ums_mask_ != 0);                                                             \
    })
#define _BitScanForward(index, mask)                                                           \
    UMS_BIT_SCAN(index, mask, ULONG, (ULONG)__builtin_ctz(ums_mask_))
#define _BitScanReverse(index, mask)                                                           \
    UMS_BIT_SCAN(index, mask, ULONG, 31 - (ULONG)__builtin_clz(ums_mask_))
#define _BitScanForward64(index, mask)                                                         \
    UMS_BIT_SCAN(index, mask, ULONGLONG, (ULONG)__builtin_ctzll(ums_mask_))
#define _BitScanReverse64(index, mask)                                                         \
    UMS_BIT_SCAN(index, mask, ULONGLONG, 63 - (ULONG)__builtin_clzll(ums_mask_))
#endif
#define BitScanForward _BitScanForward
#define BitScanReverse _BitScanReverse
#define BitScanForward64 _BitScanForward64
#define BitScanReverse64 _BitScanReverse64
#define __popcnt(n) ((ULONG)__builtin_popcount(n))
#define __popcnt64(n) ((ULONGLONG)__builtin_popcountll(n))

#define MemoryBarrier() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define _ReadWriteBarrier() __asm__ volatile("" ::: "memory")
#define _ReadBarrier() _ReadWriteBarrier()
#define _WriteBarrier() _ReadWriteBarrier()
#if defined(__x86_64__)
#define YieldProcessor() __builtin_ia32_pause()
#else
#define YieldProcessor() __asm__ volatile("yield" ::: "memory")
#endif
#define DebugBreak() __builtin_trap()
#define __debugbreak() __builtin_trap()

/* --- Interlocked operations ------------------------------------------------------------------ */

#define UMS_SEQ __ATOMIC_SEQ_CST
#define UMS_TYPE(p) __typeof__(__atomic_load_n((p), __ATOMIC_RELAXED))
#define InterlockedIncrement(p) __atomic_add_fetch((p), 1, UMS_SEQ)
#define InterlockedDecrement(p) __atomic_sub_fetch((p), 1, UMS_SEQ)
#define InterlockedExchange(p, v) __atomic_exchange_n((p), (UMS_TYPE(p))(v), UMS_SEQ)
#define InterlockedExchangeAdd(p, v) __atomic_fetch_add((p), (v), UMS_SEQ)
#define InterlockedExchangeSubtract(p, v) __atomic_fetch_sub((p), (v), UMS_SEQ)
#define InterlockedAdd(p, v) __atomic_add_fetch((p), (v), UMS_SEQ)
#define InterlockedAnd(p, v) __atomic_fetch_and((p), (v), UMS_SEQ)
#define InterlockedOr(p, v) __atomic_fetch_or((p), (v), UMS_SEQ)
#define InterlockedXor(p, v) __atomic_fetch_xor((p), (v), UMS_SEQ)
#ifdef __cplusplus
extern "C++" template <typename T, typename To, typename From>
inline T InterlockedCompareExchange(volatile T *p, To to, From from)
{
    T seen = (T)(from);
    (void)__atomic_compare_exchange_n(p, &seen, (T)(to), 0, UMS_SEQ, UMS_SEQ);
    return seen;
}

extern "C++" template <typename T, typename Bit>
inline BOOLEAN InterlockedBitTestAndSet(volatile T *p, Bit bit)
{
    return (BOOLEAN)((__atomic_fetch_or(p, (T)1 << bit, UMS_SEQ) >> bit) & 1);
}

extern "C++" template <typename T, typename Bit>
inline BOOLEAN InterlockedBitTestAndReset(volatile T *p, Bit bit)
{
    return (BOOLEAN)((__atomic_fetch_and(p, ~((T)1 << bit), UMS_SEQ) >> bit) & 1);
}
#else
#define InterlockedCompareExchange(p, to, from)                                                \
    __extension__({                                                                            \
        UMS_TYPE(p) ums_seen_ = (UMS_TYPE(p))(from);                                           \
        (void)__atomic_compare_exchange_n((p), &ums_seen_, (UMS_TYPE(p))(to), 0, UMS_SEQ,      \
                                          UMS_SEQ);                                            \
        ums_seen_;                                                                             \
    })
#define InterlockedBitTestAndSet(p, bit)                                                       \
    ((BOOLEAN)((__atomic_fetch_or((p), (UMS_TYPE(p))1 << (bit), UMS_SEQ) >> (bit)) & 1))
#define InterlockedBitTestAndReset(p, bit)                                                     \
    ((BOOLEAN)((__atomic_fetch_and((p), ~((UMS_TYPE(p))1 << (bit)), UMS_SEQ) >> (bit)) & 1))
#endif
#define InterlockedExchangePointer(p, v) InterlockedExchange((p), (v))
#define InterlockedCompareExchangePointer InterlockedCompareExchange

#define InterlockedIncrement64 InterlockedIncrement
#define InterlockedDecrement64 InterlockedDecrement
#define InterlockedExchange64 InterlockedExchange
#define InterlockedExchangeAdd64 InterlockedExchangeAdd
#define InterlockedAdd64 InterlockedAdd
#define InterlockedAnd64 InterlockedAnd
#define InterlockedOr64 InterlockedOr
#define InterlockedXor64 InterlockedXor
#define InterlockedCompareExchange64 InterlockedCompareExchange
#define InterlockedIncrementAcquire InterlockedIncrement
#define InterlockedIncrementRelease InterlockedIncrement
#define InterlockedIncrementNoFence InterlockedIncrement
#define InterlockedDecrementAcquire InterlockedDecrement
#define InterlockedDecrementRelease InterlockedDecrement
#define InterlockedDecrementNoFence InterlockedDecrement
#define InterlockedExchangeAcquire InterlockedExchange
#define InterlockedCompareExchangeAcquire InterlockedCompareExchange
#define InterlockedCompareExchangeRelease InterlockedCompareExchange
#define InterlockedCompareExchangeNoFence InterlockedCompareExchange
#define _InterlockedIncrement InterlockedIncrement
#define _InterlockedDecrement InterlockedDecrement
#define _InterlockedExchange InterlockedExchange
#define _InterlockedExchangeAdd InterlockedExchangeAdd
#define _InterlockedCompareExchange InterlockedCompareExchange
#define _InterlockedAnd InterlockedAnd
#define _InterlockedOr InterlockedOr
#define _InterlockedXor InterlockedXor
#define _InterlockedIncrement64 InterlockedIncrement
#define _InterlockedDecrement64 InterlockedDecrement
#define _InterlockedExchange64 InterlockedExchange
#define _InterlockedExchangeAdd64 InterlockedExchangeAdd
#define _InterlockedCompareExchange64 InterlockedCompareExchange
#define _InterlockedExchangePointer InterlockedExchangePointer
#define _InterlockedCompareExchangePointer InterlockedCompareExchangePointer

/* --- Interlocked singly linked lists --------------------------------------------------------- */

typedef struct DECLSPEC_ALIGN(16) _SLIST_ENTRY {
    struct _SLIST_ENTRY *Next;
} SLIST_ENTRY, *PSLIST_ENTRY;

typedef union DECLSPEC_ALIGN(16) _SLIST_HEADER {
    struct {
        ULONGLONG Alignment;
        ULONGLONG Region;
    } Words;
} SLIST_HEADER, *PSLIST_HEADER;

/* --- Locks inside the process ---------------------------------------------------------------- */

typedef struct _RTL_CRITICAL_SECTION {
    PVOID DebugInfo;
    LONG LockCount;
    LONG RecursionCount;
    HANDLE OwningThread;
    HANDLE LockSemaphore;
    ULONG_PTR SpinCount;
} RTL_CRITICAL_SECTION, *PRTL_CRITICAL_SECTION;

typedef struct _RTL_SRWLOCK {
    PVOID Ptr;
} RTL_SRWLOCK, *PRTL_SRWLOCK;
#define RTL_SRWLOCK_INIT { 0 }

typedef struct _RTL_CONDITION_VARIABLE {
    PVOID Ptr;
} RTL_CONDITION_VARIABLE, *PRTL_CONDITION_VARIABLE;
#define RTL_CONDITION_VARIABLE_INIT { 0 }
#define RTL_CONDITION_VARIABLE_LOCKMODE_SHARED 1

typedef union _RTL_RUN_ONCE {
    PVOID Ptr;
} RTL_RUN_ONCE, *PRTL_RUN_ONCE;
#define RTL_RUN_ONCE_INIT { 0 }

#endif
