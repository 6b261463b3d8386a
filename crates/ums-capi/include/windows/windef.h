/*
 * windef.h for Linux: the types of Windows programs, and the keywords of compilers for Windows.
 *
 * A LONG has 32 bits, as on Windows, so it is an int. A type with the size of a pointer is an
 * unsigned long, so that SIZE_T and size_t are one type. Calling conventions and annotations have
 * no effect.
 */
#ifndef UMS_WINDEF_H
#define UMS_WINDEF_H
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

#include "sal.h"

/* The macros by which Windows programs recognise their processor. The headers of the C library, of
 * gcc and of clang do not look at them. Those of some other libraries (OpenSSL) take _WIN64 for
 * Windows itself: include them before this header, or define UMS_NO_WIN64. */
#if defined(__x86_64__)
#ifndef _M_AMD64
#define _M_AMD64 100
#endif
#ifndef _M_X64
#define _M_X64 100
#endif
#ifndef _AMD64_
#define _AMD64_
#endif
#elif defined(__aarch64__)
#ifndef _M_ARM64
#define _M_ARM64 1
#endif
#ifndef _ARM64_
#define _ARM64_
#endif
#endif
#if !defined(_WIN64) && !defined(UMS_NO_WIN64)
#define _WIN64 1
#endif

#define WINAPI
#define WINBASEAPI
#define WINADVAPI
#define APIENTRY
#define CALLBACK
#define NTAPI
#define NTSYSAPI
#define NTSYSCALLAPI
#define APIPRIVATE
#define PASCAL
#define FAR
#define NEAR
#define __stdcall
#define __cdecl
#define __fastcall
#define __vectorcall
#define __thiscall
#define _cdecl
#define _stdcall
#define __ptr64
#define __unaligned
#define __w64
#ifndef __forceinline
#define __forceinline inline __attribute__((always_inline))
#endif
/* No `static`: programs write `static FORCEINLINE`, as on Windows. In C, the address of a function
 * that is FORCEINLINE and not static cannot be taken: the linker does not find it. */
#define FORCEINLINE __forceinline
#define CFORCEINLINE FORCEINLINE
#define __int8 char
#define __int16 short
#define __int32 int
#define __int64 long long

/* __declspec(thread), (align(16)), (noinline) ... */
#define __declspec(what) UMS_DECLSPEC_##what
#define _declspec(what) UMS_DECLSPEC_##what
#define UMS_DECLSPEC_thread __thread
#define UMS_DECLSPEC_align(bytes) __attribute__((aligned(bytes)))
#define UMS_DECLSPEC_noinline __attribute__((noinline))
#define UMS_DECLSPEC_noreturn __attribute__((noreturn))
#define UMS_DECLSPEC_dllexport
#define UMS_DECLSPEC_dllimport
#define UMS_DECLSPEC_naked
#define UMS_DECLSPEC_nothrow
#define UMS_DECLSPEC_restrict
#define UMS_DECLSPEC_selectany __attribute__((weak))
#define DECLSPEC_NORETURN __attribute__((noreturn))
#define DECLSPEC_ALIGN(bytes) __attribute__((aligned(bytes)))
#define DECLSPEC_NOINLINE __attribute__((noinline))
#define DECLSPEC_IMPORT
#define DECLSPEC_CACHEALIGN __attribute__((aligned(64)))

#define IN
#define OUT
#define OPTIONAL
#define CONST const
#define VOID void
typedef void *PVOID, *LPVOID;
typedef const void *LPCVOID, *PCVOID;
typedef int BOOL, *PBOOL, *LPBOOL;
typedef unsigned char BYTE, *PBYTE, *LPBYTE, BOOLEAN, *PBOOLEAN, UCHAR, *PUCHAR;
typedef char CHAR, *PCHAR, *LPSTR, *PSTR, CCHAR;
typedef const char *LPCSTR, *PCSTR;
typedef wchar_t WCHAR, *PWCHAR, *LPWSTR, *PWSTR;
typedef const wchar_t *LPCWSTR, *PCWSTR;
typedef short SHORT, *PSHORT;
typedef unsigned short WORD, *PWORD, *LPWORD, USHORT, *PUSHORT;
typedef int INT, *PINT, *LPINT, LONG, *PLONG, *LPLONG, LONG32, INT32;
typedef unsigned int UINT, *PUINT, DWORD, *PDWORD, *LPDWORD, ULONG, *PULONG, DWORD32, ULONG32;
typedef unsigned int UINT32;
typedef long long LONGLONG, *PLONGLONG, LONG64, *PLONG64, INT64, *PINT64;
typedef unsigned long long ULONGLONG, *PULONGLONG, DWORD64, *PDWORD64, ULONG64, *PULONG64;
typedef unsigned long long UINT64, *PUINT64, DWORDLONG, *PDWORDLONG;
typedef signed char INT8;
typedef unsigned char UINT8;
typedef short INT16;
typedef unsigned short UINT16;
typedef float FLOAT;
typedef double DOUBLE;
typedef intptr_t INT_PTR, LONG_PTR, *PLONG_PTR, SSIZE_T, *PSSIZE_T;
typedef uintptr_t UINT_PTR, ULONG_PTR, *PULONG_PTR, DWORD_PTR, *PDWORD_PTR, KAFFINITY;
typedef size_t SIZE_T, *PSIZE_T;
typedef int HRESULT;
typedef LONG NTSTATUS;
typedef void *HANDLE, **PHANDLE, **LPHANDLE;
typedef void *HMODULE, *HINSTANCE;

#ifdef UNICODE
typedef WCHAR TCHAR, *PTCHAR;
typedef LPWSTR LPTSTR, PTSTR;
typedef LPCWSTR LPCTSTR, PCTSTR;
#define __TEXT(quote) L##quote
#else
typedef char TCHAR, *PTCHAR;
typedef LPSTR LPTSTR, PTSTR;
typedef LPCSTR LPCTSTR, PCTSTR;
#define __TEXT(quote) quote
#endif
#define TEXT(quote) __TEXT(quote)

#ifndef TRUE
#define TRUE 1
#endif
#ifndef FALSE
#define FALSE 0
#endif
#define MAX_PATH 260
#define MAXDWORD 0xffffffffu
#define MAXLONG 0x7fffffff
#define MAXULONG_PTR (~(ULONG_PTR)0)

#if !defined(NOMINMAX) && !defined(__cplusplus) /* in C++ they would break <algorithm> */
#ifndef max
#define max(a, b) (((a) > (b)) ? (a) : (b))
#endif
#ifndef min
#define min(a, b) (((a) < (b)) ? (a) : (b))
#endif
#endif

#define LOWORD(n) ((WORD)((DWORD_PTR)(n) & 0xffff))
#define HIWORD(n) ((WORD)(((DWORD_PTR)(n) >> 16) & 0xffff))
#define LOBYTE(n) ((BYTE)((DWORD_PTR)(n) & 0xff))
#define HIBYTE(n) ((BYTE)(((DWORD_PTR)(n) >> 8) & 0xff))
#define MAKEWORD(low, high) ((WORD)((BYTE)(low) | ((WORD)(BYTE)(high)) << 8))
#define MAKELONG(low, high) ((LONG)((WORD)(low) | ((DWORD)(WORD)(high)) << 16))

#endif
