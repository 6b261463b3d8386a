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

#define WINAPI
#define WINBASEAPI
#define WINADVAPI
#define APIENTRY
#define CALLBACK
#define NTAPI
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
#define FORCEINLINE static __forceinline
#define __int8 char
#define __int16 short
#define __int32 int
#define __int64 long long

/* __declspec(thread), (align(16)), (noinline) ... */
#define __declspec(what) UMS_DECLSPEC_##what
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
#ifndef __cplusplus /* libstdc++ uses these names itself */
#define __in
#define __in_opt
#define __out
#define __out_opt
#define __inout
#define __inout_opt
#define __reserved
#endif
#define _In_
#define _In_opt_
#define _In_z_
#define _In_reads_(n)
#define _In_reads_opt_(n)
#define _In_reads_bytes_(n)
#define _In_reads_bytes_opt_(n)
#define _Out_
#define _Out_opt_
#define _Out_writes_(n)
#define _Out_writes_bytes_(n)
#define _Out_writes_bytes_to_(n, m)
#define _Out_writes_bytes_to_opt_(n, m)
#define _Outptr_
#define _Inout_
#define _Inout_opt_
#define _Reserved_
#define _Pre_valid_
#define _Post_invalid_
#define _Ret_maybenull_
#define _Check_return_
#define _Must_inspect_result_
#define _Success_(what)
#define _When_(when, what)
#define _Interlocked_operand_

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
#define MAKELONG(low, high) ((LONG)((WORD)(low) | ((DWORD)(WORD)(high)) << 16))

#endif
