/* Another name of windef.h. */
#include "windef.h"
