/* crtdbg.h for Linux: the assertions of Microsoft's C library. */
#ifndef UMS_CRTDBG_H
#define UMS_CRTDBG_H
#pragma once

#include <assert.h>

#define _ASSERT(what) assert(what)
#define _ASSERTE(what) assert(what)

#endif
