/* Used by all test programs for windows.h. */
#ifndef WCHECK_H
#define WCHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

#define CHECK(what)                                                                            \
    do {                                                                                       \
        if (!(what)) {                                                                         \
            fprintf(stderr, "%s:%d: %s (last error %u)\n", __FILE__, __LINE__, #what,          \
                    (unsigned)GetLastError());                                                 \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

/* Checks that the call fails with this error. */
#define FAILS(error, what)                                                                     \
    do {                                                                                       \
        SetLastError(0);                                                                       \
        if ((what) || GetLastError() != (error)) {                                             \
            fprintf(stderr, "%s:%d: %s did not fail with %u, but %u\n", __FILE__, __LINE__,    \
                    #what, (unsigned)(error), (unsigned)GetLastError());                       \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#endif
