// The `/` of file operations.
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "../platform.h"

int root_directory = -1;
bool is_confined;
static char root_path[PATH_MAX];

bool open_root(const char *path) {
  root_directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  is_confined = strcmp(path, "/") != 0;
  return root_directory >= 0 && (!is_confined || platform_path(root_directory, root_path, sizeof root_path));
}

bool path_below_root(int fd, char *path, size_t size) {
  static char full[PATH_MAX];
  struct stat status;
  if (!platform_path(fd, full, sizeof full) || fstat(fd, &status) < 0 || status.st_nlink == 0) return false;
  const char *inside = full;
  if (is_confined) {
    size_t length = strlen(root_path);
    if (strncmp(full, root_path, length) != 0 || (full[length] != '/' && full[length] != 0)) return false;
    inside = full[length] == 0 ? "/" : full + length;
  }
  if (strlen(inside) >= size) return false;
  strcpy(path, inside);
  return true;
}
