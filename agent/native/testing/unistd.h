// setlogin(2), implemented in processes.c.
#ifndef COPPICE_TESTING_UNISTD_H
#define COPPICE_TESTING_UNISTD_H

#include_next <unistd.h>

int setlogin(const char *name);

#endif
