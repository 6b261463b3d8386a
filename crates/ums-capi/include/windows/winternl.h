/* winternl.h for Linux: the types with which programs declare functions of ntdll. The functions
 * themselves are not here. */
#ifndef UMS_WINTERNL_H
#define UMS_WINTERNL_H
#pragma once

#include "windows.h"

#define NT_SUCCESS(status) ((NTSTATUS)(status) >= 0)

typedef struct _UNICODE_STRING {
    USHORT Length, MaximumLength;
    PWSTR Buffer;
} UNICODE_STRING, *PUNICODE_STRING;

typedef struct _IO_STATUS_BLOCK {
    __extension__ union {
        NTSTATUS Status;
        PVOID Pointer;
    };
    ULONG_PTR Information;
} IO_STATUS_BLOCK, *PIO_STATUS_BLOCK;

typedef VOID(NTAPI *PIO_APC_ROUTINE)(PVOID ApcContext, PIO_STATUS_BLOCK IoStatusBlock,
                                     ULONG Reserved);

#endif
