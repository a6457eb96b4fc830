// What sandboxes take up of the disk, and how they are held to it where the file system counts for projects.
#define _GNU_SOURCE
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PROJECT_QUOTA = 2, DEPTH_LIMIT = 500, BLOCK_BYTES = 512, OVERLAY = 0x794c7630 };

static uint64_t measured_bytes;
static unsigned long entries_left;

/** What goes away meanwhile takes up nothing. Takes the descriptor over. */
static void measure_directory(int fd, unsigned depth) {
  DIR *entries = fd < 0 ? NULL : fdopendir(fd);
  if (entries == NULL) {
    if (fd >= 0) close(fd);
    return;
  }
  for (struct dirent *entry; entries_left > 0 && (entry = readdir(entries)) != NULL;) {
    struct stat status;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    entries_left--;
    if (fstatat(fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0 || status.st_nlink == 0) continue;
    bool is_directory = S_ISDIR(status.st_mode);
    // A file counts once, however many of its names there are.
    measured_bytes += (uint64_t)status.st_blocks * BLOCK_BYTES / (is_directory ? 1 : status.st_nlink);
    if (!is_directory || depth == DEPTH_LIMIT) continue;
    measure_directory(openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), depth + 1);
  }
  closedir(entries);
}

struct nameless {
  dev_t device;
  ino_t number;
  blkcnt_t blocks;
};

static int compare_nameless(const void *one, const void *other) {
  const struct nameless *first = one, *second = other;
  if (first->device != second->device) return first->device < second->device ? -1 : 1;
  return first->number < second->number ? -1 : first->number > second->number;
}

/** Adds files that were removed and are still written to, each once. Processes that end meanwhile hold none. */
static void measure_nameless(const char *processes) {
  static struct nameless *found;
  size_t count = 0, room = 0;
  char path[PATH_MAX];
  FILE *list = fopen(processes, "re");
  for (int pid; list != NULL && fscanf(list, "%d", &pid) == 1;) {
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *descriptors = opendir(path);
    if (descriptors == NULL) continue;
    for (struct dirent *entry; (entry = readdir(descriptors)) != NULL;) {
      struct stat status;
      struct statfs system;
      if (fstatat(dirfd(descriptors), entry->d_name, &status, 0) < 0 || !S_ISREG(status.st_mode)) continue;
      snprintf(path, sizeof path, "/proc/%d/fd/%.20s", pid, entry->d_name);
      // Not what lies in memory.
      if (status.st_nlink > 0 || statfs(path, &system) < 0 || system.f_type != OVERLAY) continue;
      if (count == room) {
        struct nameless *larger = realloc(found, (room = room * 2 + 64) * sizeof *found);
        if (larger == NULL) break;
        found = larger;
      }
      found[count++] = (struct nameless){status.st_dev, status.st_ino, status.st_blocks};
    }
    closedir(descriptors);
  }
  if (list != NULL) fclose(list);
  if (count > 0) qsort(found, count, sizeof *found, compare_nameless);
  for (size_t index = 0; index < count; index++) {
    if (index > 0 && compare_nameless(&found[index - 1], &found[index]) == 0) continue;
    measured_bytes += (uint64_t)found[index].blocks * BLOCK_BYTES;
  }
}

/** Does not need to know which device the directory is on. */
static int quota_of(const char *directory, int command, uint32_t project, void *data) {
#ifdef SYS_quotactl_fd
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = (int)syscall(SYS_quotactl_fd, fd, QCMD(command, PROJECT_QUOTA), project, data);
  int error = errno;
  close(fd);
  errno = error;
  return result;
#else
  (void)directory, (void)command, (void)project, (void)data;
  errno = ENOSYS;
  return -1;
#endif
}

static int join_project(const char *directory, uint32_t project) {
  struct fsxattr attributes;
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = ioctl(fd, FS_IOC_FSGETXATTR, &attributes);
  if (result == 0) {
    attributes.fsx_projid = project;
    attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
    result = ioctl(fd, FS_IOC_FSSETXATTR, &attributes);
  }
  int error = errno;
  close(fd);
  errno = error;
  return result;
}

static int set_limit(const char *directory, uint32_t project, const char *mebibytes) {
  // In blocks of 1 KiB, whatever those of the file system are.
  struct dqblk limits = {.dqb_bhardlimit = strtoull(mebibytes, NULL, 10) * 1024, .dqb_valid = QIF_BLIMITS};
  return quota_of(directory, Q_SETQUOTA, project, &limits);
}

int limit_project(const char *directory, const char *project, const char *mebibytes) {
  uint32_t number = (uint32_t)strtoul(project, NULL, 10);
  if (join_project(directory, number) < 0) return -1;
  return set_limit(directory, number, mebibytes);
}

static bool is_enforced(const char *directory) {
  struct fs_quota_statv state = {.qs_version = FS_QSTATV_VERSION1};
  return quota_of(directory, Q_XGETQSTATV, 0, &state) == 0 && (state.qs_flags & FS_QUOTA_PDQ_ENFD) != 0;
}

_Noreturn void answer_about_disk(const char **words, unsigned count, int say) {
  const char *question = words[0], *directory = words[1];
  uint32_t project = count > 2 ? (uint32_t)strtoul(words[2], NULL, 10) : 0;
  struct dqblk used;
  int result = 0;
  if (strcmp(question, "enforced") == 0) {
    dprintf(say, "%d", is_enforced(directory));
  } else if (strcmp(question, "measure") == 0) {
    entries_left = project;
    measure_directory(open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0);
    if (count > 3) measure_nameless(words[3]);
    dprintf(say, "%" PRIu64, measured_bytes);
  } else if (strcmp(question, "usage") == 0) {
    result = quota_of(directory, Q_GETQUOTA, project, &used);
    if (result == 0) dprintf(say, "%" PRIu64, (uint64_t)used.dqb_curspace);
  } else if (strcmp(question, "hold") == 0 && count == 4) {
    result = limit_project(directory, words[2], words[3]);
  } else if (strcmp(question, "limit") == 0 && count == 4) {
    result = set_limit(directory, project, words[3]);
  } else {
    errno = EINVAL;
    result = -1;
  }
  if (result < 0) dprintf(say, "%s: %s", question, strerror(errno));
  _exit(result < 0 ? 1 : 0);
}
