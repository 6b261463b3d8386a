/* conio.h for Linux: reading a key. It waits for a line, as the terminal delivers lines. */
#ifndef UMS_CONIO_H
#define UMS_CONIO_H
#pragma once

#include <stdio.h>

#define _getch getchar
#define getch getchar

#endif
