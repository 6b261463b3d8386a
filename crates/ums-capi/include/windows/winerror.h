/* winerror.h for Linux: the error numbers that the functions of windows.h return. */
#ifndef UMS_WINERROR_H
#define UMS_WINERROR_H
#pragma once

#include "windef.h"

#define NO_ERROR 0u
#define ERROR_SUCCESS 0u
#define ERROR_INVALID_FUNCTION 1u
#define ERROR_FILE_NOT_FOUND 2u
#define ERROR_ACCESS_DENIED 5u
#define ERROR_INVALID_HANDLE 6u
#define ERROR_NOT_ENOUGH_MEMORY 8u
#define ERROR_OUTOFMEMORY 14u
#define ERROR_BAD_LENGTH 24u
#define ERROR_GEN_FAILURE 31u
#define ERROR_NOT_SUPPORTED 50u
#define ERROR_INVALID_PARAMETER 87u
#define ERROR_CALL_NOT_IMPLEMENTED 120u
#define ERROR_INSUFFICIENT_BUFFER 122u
#define ERROR_BUSY 170u
#define ERROR_ALREADY_EXISTS 183u
#define ERROR_MORE_DATA 234u
#define ERROR_NO_MORE_ITEMS 259u
#define ERROR_NOT_OWNER 288u
#define ERROR_TOO_MANY_POSTS 298u
#define ERROR_OPERATION_ABORTED 995u
#define ERROR_IO_PENDING 997u
#define ERROR_RETRY 1237u
#define ERROR_INTERNAL_ERROR 1359u
#define ERROR_INVALID_THREAD_ID 1444u
#define ERROR_NO_SYSTEM_RESOURCES 1450u
#define ERROR_TIMEOUT 1460u

/* The documentation of the UMS functions of Windows uses these names, but the headers of Windows
 * do not define them. */
#define ERROR_INFO_LENGTH_MISMATCH ERROR_BAD_LENGTH
#define ERROR_INVALID_INFO_CLASS ERROR_INVALID_PARAMETER

#define S_OK ((HRESULT)0)
#define S_FALSE ((HRESULT)1)
#define E_FAIL ((HRESULT)0x80004005)
#define E_OUTOFMEMORY ((HRESULT)0x8007000e)
#define E_INVALIDARG ((HRESULT)0x80070057)
#define SUCCEEDED(hr) (((HRESULT)(hr)) >= 0)
#define FAILED(hr) (((HRESULT)(hr)) < 0)
#define HRESULT_FROM_WIN32(e) \
    ((HRESULT)(e) <= 0 ? (HRESULT)(e) : (HRESULT)(((e) & 0xffff) | 0x80070000))

#endif
