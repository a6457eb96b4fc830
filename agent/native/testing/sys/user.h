// The part of fcntl(2)'s F_KINFO that the agent reads.
#ifndef COPPICE_TESTING_USER_H
#define COPPICE_TESTING_USER_H

#include <limits.h>

struct kinfo_file {
  int kf_structsize;
  char kf_path[PATH_MAX];
};

#endif
