/*
 * windows.h for Linux: User-Mode Scheduling as in Windows 7, and the calls around it.
 *
 * Programs that schedule their own threads compile unchanged with
 *     cc -I<prefix>/include/ums/windows program.c -lums -pthread
 */
#ifndef UMS_WINDOWS_H
#define UMS_WINDOWS_H
#pragma once

#ifndef _WIN32_WINNT
#define _WIN32_WINNT 0x0601
#endif
#ifndef WINVER
#define WINVER _WIN32_WINNT
#endif

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "windef.h"
#include "winbase.h"

#define OutputDebugStringA(text) ((void)fputs((text), stderr))
#define OutputDebugStringW(text) ((void)fputws((text), stderr))
#ifdef UNICODE
#define OutputDebugString OutputDebugStringW
#else
#define OutputDebugString OutputDebugStringA
#endif

/* Names that Microsoft's C library uses. */
#define printf_s printf
#define fprintf_s fprintf
#define sprintf_s snprintf
#define _snprintf snprintf
#define _strdup strdup
#define _stricmp strcasecmp
#define _atoi64 atoll
#define _alloca __builtin_alloca

static inline void *_aligned_malloc(size_t size, size_t alignment)
{
    void *block = NULL;
    return posix_memalign(&block, alignment < sizeof block ? sizeof block : alignment, size) ? NULL
                                                                                            : block;
}

static inline void _aligned_free(void *block)
{
    free(block);
}

#endif
