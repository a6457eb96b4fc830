// setlogin(2), implemented in processes.c. Source: sys/kern/kern_prot.c (sys_setlogin).
#ifndef COPPICE_TESTING_UNISTD_H
#define COPPICE_TESTING_UNISTD_H

#include_next <unistd.h>

int setlogin(const char *name);

#endif
