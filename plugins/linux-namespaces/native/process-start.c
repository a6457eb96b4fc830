#define _GNU_SOURCE
#include "process-start.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool read_start(pid_t pid, char start[32]) {
  char path[64], line[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t length = read(fd, line, sizeof line - 1);
  close(fd);
  if (length <= 0) return false;
  line[length] = 0;
  // The program's name is in parentheses and may contain any character.
  char *field = strrchr(line, ')');
  for (unsigned index = 0; field != NULL && index < 20; index++) field = strchr(field + 1, ' ');
  return field != NULL && sscanf(field, " %31[0-9]", start) == 1;
}
