/* Another name of process.h. */
#include "process.h"
