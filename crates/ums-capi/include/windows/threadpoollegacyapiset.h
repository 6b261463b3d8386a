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
    HANDLE stop, thread, completed;
    WAITORTIMERCALLBACK callback;
    PVOID parameter;
    DWORD due, period;
    BOOL frees_itself;
} ums_timer;

static inline VOID ums_timer_free(ums_timer *timer)
{
    CloseHandle(timer->thread);
    CloseHandle(timer->stop);
    LocalFree(timer);
}

static inline DWORD WINAPI ums_timer_runs(LPVOID argument)
{
    ums_timer *timer = (ums_timer *)argument;
    DWORD next = timer->due;
    while (WaitForSingleObject(timer->stop, next) == WAIT_TIMEOUT) {
        timer->callback(timer->parameter, 1);
        next = timer->period == 0 ? INFINITE : timer->period;
    }
    if (timer->frees_itself) {
        if (timer->completed != NULL)
            SetEvent(timer->completed);
        ums_timer_free(timer);
    }
    return 0;
}

/* Calls the function after `due` milliseconds, and then each `period` milliseconds unless that is
 * 0. There is only the default queue, NULL. */
static inline BOOL CreateTimerQueueTimer(PHANDLE timer, HANDLE queue, WAITORTIMERCALLBACK callback,
                                         PVOID parameter, DWORD due, DWORD period, ULONG flags)
{
    ums_timer *made = queue == NULL ? (ums_timer *)LocalAlloc(LPTR, sizeof *made) : NULL;
    if (made == NULL) {
        SetLastError(queue != NULL ? ERROR_NOT_SUPPORTED : ERROR_NOT_ENOUGH_MEMORY);
        return FALSE;
    }
    made->callback = callback;
    made->parameter = parameter;
    made->due = due;
    made->period = flags & WT_EXECUTEONLYONCE ? 0 : period;
    made->stop = CreateEventA(NULL, TRUE, FALSE, NULL);
    /* It begins when its handle is known, because it may free that handle. */
    if (made->stop != NULL)
        made->thread = CreateThread(NULL, 0, ums_timer_runs, made, CREATE_SUSPENDED, NULL);
    if (made->thread == NULL) {
        DWORD why = GetLastError();
        if (made->stop != NULL)
            CloseHandle(made->stop);
        LocalFree(made);
        SetLastError(why);
        return FALSE;
    }
    *timer = (HANDLE)made;
    ResumeThread(made->thread);
    return TRUE;
}

/* Ends a timer. With INVALID_HANDLE_VALUE the call waits until the function of the timer has
 * returned. Otherwise it does not wait, and sets the event `completed`, if there is one, then. */
static inline BOOL DeleteTimerQueueTimer(HANDLE queue, HANDLE timer, HANDLE completed)
{
    ums_timer *old = (ums_timer *)timer;
    if (queue != NULL || old == NULL) {
        SetLastError(ERROR_INVALID_PARAMETER);
        return FALSE;
    }
    if (completed == INVALID_HANDLE_VALUE) {
        SetEvent(old->stop);
        WaitForSingleObject(old->thread, INFINITE);
        ums_timer_free(old);
        return TRUE;
    }
    old->completed = completed;
    old->frees_itself = TRUE;
    SetEvent(old->stop);
    return TRUE;
}

#endif
