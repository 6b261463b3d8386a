/* threadpoollegacyapiset.h for Linux: timers of a timer queue, each on a thread of its own. */
#ifndef UMS_THREADPOOLLEGACYAPISET_H
#define UMS_THREADPOOLLEGACYAPISET_H
#pragma once

#include "winbase.h"

#define WT_EXECUTEDEFAULT 0x00000000u
#define WT_EXECUTEINTIMERTHREAD 0x00000020u
#define WT_EXECUTEONLYONCE 0x00000008u

typedef VOID(CALLBACK *WAITORTIMERCALLBACK)(PVOID lpParameter, BOOLEAN TimerOrWaitFired);

typedef struct ums_timer {
    HANDLE stop, thread;
    WAITORTIMERCALLBACK callback;
    PVOID parameter;
    DWORD due, period;
} ums_timer;

static inline DWORD WINAPI ums_timer_runs(LPVOID argument)
{
    ums_timer *timer = (ums_timer *)argument;
    DWORD next = timer->due;
    while (WaitForSingleObject(timer->stop, next) == WAIT_TIMEOUT) {
        timer->callback(timer->parameter, 1);
        next = timer->period == 0 ? INFINITE : timer->period;
    }
    return 0;
}

/* Calls the function after `due` milliseconds, and then each `period` milliseconds unless that is
 * 0. The queue must be NULL. */
static inline BOOL CreateTimerQueueTimer(PHANDLE timer, HANDLE queue, WAITORTIMERCALLBACK callback,
                                         PVOID parameter, DWORD due, DWORD period, ULONG flags)
{
    ums_timer *made = (ums_timer *)LocalAlloc(LPTR, sizeof *made);
    (void)flags;
    if (made == NULL || queue != NULL) {
        LocalFree(made);
        SetLastError(queue != NULL ? ERROR_NOT_SUPPORTED : ERROR_NOT_ENOUGH_MEMORY);
        return FALSE;
    }
    made->callback = callback;
    made->parameter = parameter;
    made->due = due;
    made->period = period;
    made->stop = CreateEventA(NULL, TRUE, FALSE, NULL);
    made->thread = CreateThread(NULL, 0, ums_timer_runs, made, 0, NULL);
    if (made->stop == NULL || made->thread == NULL) {
        DWORD why = GetLastError();
        CloseHandle(made->stop);
        LocalFree(made);
        SetLastError(why);
        return FALSE;
    }
    *timer = (HANDLE)made;
    return TRUE;
}

/* Ends a timer, and waits until its function has returned. Not to be called by that function. */
static inline BOOL DeleteTimerQueueTimer(HANDLE queue, HANDLE timer, HANDLE completed)
{
    ums_timer *old = (ums_timer *)timer;
    (void)queue;
    SetEvent(old->stop);
    WaitForSingleObject(old->thread, INFINITE);
    CloseHandle(old->thread);
    CloseHandle(old->stop);
    LocalFree(old);
    if (completed != NULL && completed != INVALID_HANDLE_VALUE)
        SetEvent(completed);
    return TRUE;
}

#endif
