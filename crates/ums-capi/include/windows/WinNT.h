/* Another name of winnt.h. */
#include "winnt.h"
