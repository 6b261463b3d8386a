/* tchar.h for Linux: names whose meaning depends on whether UNICODE is defined. */
#ifndef UMS_TCHAR_H
#define UMS_TCHAR_H
#pragma once

#include "windows.h"

#define _T(text) TEXT(text)
#define _TEXT(text) TEXT(text)
typedef TCHAR _TCHAR;

#ifdef UNICODE
#define _tprintf wprintf
#define _ftprintf fwprintf
#define _tcslen wcslen
#define _tcscmp wcscmp
#define _ttoi(text) ((int)wcstol((text), NULL, 10))
#define _fputts fputws
#else
#define _tmain main
#define _tprintf printf
#define _ftprintf fprintf
#define _tcslen strlen
#define _tcscmp strcmp
#define _ttoi atoi
#define _fputts fputs
#endif

#endif
