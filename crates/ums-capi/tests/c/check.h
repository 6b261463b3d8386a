/* Used by all test programs: a check that prints what failed, and a node of the requested kind. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ums.h"

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #what,     \
                    ums_last_error());                                                     \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* Checks that the call returns this number. */
#define IS(expected, call)                                                                 \
    do {                                                                                   \
        long long is_ = (long long)(call);                                                 \
        if (is_ != (long long)(expected)) {                                                \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (last error: %s)\n", __FILE__,    \
                    __LINE__, #call, is_, (long long)(expected), ums_last_error());        \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define MS 1000000ull

/* The default options, with the kind of workers that the program's first argument names. */
static inline ums_options options_of(int argc, char **argv)
{
    ums_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    if (argc > 1 && strcmp(argv[1], "fiber") == 0)
        options.worker_kind = UMS_WORKERS_FIBER;
    if (argc > 1 && strcmp(argv[1], "context") == 0)
        options.worker_kind = UMS_WORKERS_CONTEXT;
    return options;
}

static inline ums_node *node_of(int argc, char **argv, size_t schedulers)
{
    ums_options options = options_of(argc, argv);
    ums_node *node = NULL;
    options.schedulers = schedulers;
    IS(0, ums_node_new(&options, &node));
    return node;
}

#endif
