/* process.h for Linux: the functions with which Microsoft's C library creates threads. */
#ifndef UMS_PROCESS_H
#define UMS_PROCESS_H
#pragma once

#include "windows.h"

static inline uintptr_t _beginthreadex(void *security, unsigned stack_size,
                                       unsigned(__stdcall *start)(void *), void *arg,
                                       unsigned flags, unsigned *id)
{
    return (uintptr_t)CreateThread((LPSECURITY_ATTRIBUTES)security, stack_size,
                                   (LPTHREAD_START_ROUTINE)start, arg, flags, id);
}

#define _endthreadex(code) ExitThread(code)

#endif
