/* Another name of winbase.h. */
#include "winbase.h"
