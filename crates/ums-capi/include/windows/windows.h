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
#include <strings.h>

#include "windef.h"
#include "winbase.h"
#include "threadpoollegacyapiset.h"

static inline VOID OutputDebugStringA(LPCSTR text)
{
    if (text != NULL)
        (void)fputs(text, stderr);
}

static inline VOID OutputDebugStringW(LPCWSTR text)
{
    if (text != NULL)
        (void)fprintf(stderr, "%ls", text);
}

#ifdef UNICODE
#define OutputDebugString OutputDebugStringW
#else
#define OutputDebugString OutputDebugStringA
#endif

/* --- The standard streams -------------------------------------------------------------------- */

#define STD_INPUT_HANDLE ((DWORD)-10)
#define STD_OUTPUT_HANDLE ((DWORD)-11)
#define STD_ERROR_HANDLE ((DWORD)-12)

static inline HANDLE GetStdHandle(DWORD which)
{
    return (HANDLE)(LONG_PTR)(int)which;
}

/* Writes to a standard stream; there are no handles of files. */
static inline BOOL WriteFile(HANDLE file, LPCVOID data, DWORD size, LPDWORD written,
                             LPVOID overlapped)
{
    BOOL is_output = file == GetStdHandle(STD_OUTPUT_HANDLE);
    FILE *stream = is_output ? stdout : stderr;
    if (overlapped != NULL || !(is_output || file == GetStdHandle(STD_ERROR_HANDLE))) {
        SetLastError(ERROR_INVALID_HANDLE);
        return FALSE;
    }
    if (fwrite(data, 1, size, stream) != size || fflush(stream) != 0) {
        SetLastError(ERROR_GEN_FAILURE);
        return FALSE;
    }
    if (written != NULL)
        *written = size;
    return TRUE;
}

#define WriteConsoleA WriteFile

/* --- Texts of errors ------------------------------------------------------------------------- */

#define FORMAT_MESSAGE_ALLOCATE_BUFFER 0x00000100u
#define FORMAT_MESSAGE_IGNORE_INSERTS 0x00000200u
#define FORMAT_MESSAGE_FROM_SYSTEM 0x00001000u

/* Copies a text and its zero into the buffer, or into new memory whose address it stores there. */
static inline DWORD ums_give_text(DWORD flags, LPVOID buffer, DWORD size, LPCVOID text,
                                  DWORD length, size_t unit)
{
    if (flags & FORMAT_MESSAGE_ALLOCATE_BUFFER) {
        LPVOID made = LocalAlloc(LMEM_FIXED, (length + 1) * unit);
        if (made == NULL)
            return 0;
        memcpy(buffer, &made, sizeof made);
        buffer = made;
    } else if (size <= length) {
        SetLastError(ERROR_INSUFFICIENT_BUFFER);
        return 0;
    }
    memcpy(buffer, text, (length + 1) * unit);
    return length;
}

/* The text is the number of the error. A buffer that is asked for is freed with LocalFree. */
static inline DWORD FormatMessageA(DWORD flags, LPCVOID source, DWORD error, DWORD language,
                                   LPSTR buffer, DWORD size, va_list *arguments)
{
    char text[40];
    DWORD length = (DWORD)snprintf(text, sizeof text, "Windows error %u\r\n", (unsigned)error);
    (void)source, (void)language, (void)arguments;
    return ums_give_text(flags, buffer, size, text, length, sizeof text[0]);
}

static inline DWORD FormatMessageW(DWORD flags, LPCVOID source, DWORD error, DWORD language,
                                   LPWSTR buffer, DWORD size, va_list *arguments)
{
    WCHAR text[40];
    DWORD length = (DWORD)swprintf(text, 40, L"Windows error %u\r\n", (unsigned)error);
    (void)source, (void)language, (void)arguments;
    return ums_give_text(flags, buffer, size, text, length, sizeof text[0]);
}

#ifdef UNICODE
#define FormatMessage FormatMessageW
#else
#define FormatMessage FormatMessageA
#endif

/* Names that Microsoft's C library uses. */
#define printf_s printf
#define fprintf_s fprintf
#ifdef __cplusplus
/* Of an array the size is known. */
template <size_t size, typename... Rest>
inline int sprintf_s(char (&to)[size], const char *format, Rest... rest)
{
    return snprintf(to, size, format, rest...);
}

template <typename... Rest>
inline int sprintf_s(char *to, size_t size, const char *format, Rest... rest)
{
    return snprintf(to, size, format, rest...);
}
#else
#define sprintf_s snprintf
#endif
#define _snprintf snprintf
#define _strdup strdup
#define _stricmp strcasecmp
#define _atoi64 atoll
#define _alloca __builtin_alloca
#define _malloca malloc
#define _freea free

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
