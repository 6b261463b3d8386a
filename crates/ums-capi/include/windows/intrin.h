/* intrin.h for Linux: it uses the compiler's own functions. */
#ifndef UMS_INTRIN_H
#define UMS_INTRIN_H
#pragma once

#include "winnt.h"
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#endif
