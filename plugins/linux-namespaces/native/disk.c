// Disk usage of sandboxes, and limits where the file system has project quotas.
#define _GNU_SOURCE
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/kcmp.h>
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

enum { PROJECT_QUOTA = 2, HELD_LEVELS = 400, BLOCK_BYTES = 512, MEMORY = 0x01021994, HUGE_PAGES = 0x958458f6 };

// An entry takes an inode, of which a file system may have few: as many as blocks of this size.
enum { ENTRY_BYTES = 4096, ENTRIES_PER_MEBIBYTE = (1 << 20) / ENTRY_BYTES };

static uint64_t measured_bytes;
// That each entry counts as.
static uint64_t least_bytes;
static unsigned long entries_left;
// True when a name that was read led nowhere: what was moved meanwhile may be counted nowhere.
static bool has_changed;

/** A directory on the path from the root of the walk. */
struct level {
  /** -1 while closed. */
  int fd;
  dev_t device;
  ino_t number;
  /** Names of its subdirectories, each with its NUL. */
  char *names;
  size_t length, next;
};

static bool add_name(struct level *level, size_t *room, const char *name) {
  size_t size = strlen(name) + 1;
  if (level->length + size > *room) {
    char *larger = realloc(level->names, (*room = *room * 2 + 1024));
    if (larger == NULL) return false;
    level->names = larger;
  }
  memcpy(level->names + level->length, name, size);
  level->length += size;
  return true;
}

/** Counts the entries of a directory and collects its subdirectories. */
static bool read_level(struct level *level) {
  size_t room = 0;
  struct stat status;
  int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  // The time of access would tell programs inside how far the walk is. Only an owner and root may do without.
  int fd = openat(level->fd, ".", flags | O_NOATIME);
  if (fd < 0 && errno == EPERM) fd = openat(level->fd, ".", flags);
  DIR *entries = fd < 0 ? NULL : fdopendir(fd);
  if (entries == NULL) return fd < 0 || (close(fd), false);
  bool is_complete = true;
  for (struct dirent *entry; is_complete && entries_left > 0 && (entry = readdir(entries)) != NULL;) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    entries_left--;
    if (fstatat(fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0 || status.st_nlink == 0) {
      has_changed = true;
      continue;
    }
    bool is_directory = S_ISDIR(status.st_mode);
    // A hard-linked file counts once.
    uint64_t bytes = (uint64_t)status.st_blocks * BLOCK_BYTES;
    measured_bytes += (bytes < least_bytes ? least_bytes : bytes) / (is_directory ? 1 : status.st_nlink);
    if (is_directory) is_complete = add_name(level, &room, entry->d_name);
  }
  closedir(entries);
  return is_complete;
}

/** Opens the parent of a directory again. @return -1 when it has another parent by now. */
static int reopen_parent(const struct level *parent, int child) {
  struct stat status;
  int fd = openat(child, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  if (fstat(fd, &status) == 0 && status.st_dev == parent->device && status.st_ino == parent->number) return fd;
  close(fd);
  return -1;
}

/**
 * Adds a tree of any depth. Takes ownership of the descriptor. Below `HELD_LEVELS`, a directory is closed while the
 * walk is in a subdirectory, and reopened as that one's parent.
 * @return false when a move so deep down lost the way, or memory has run out.
 */
static bool measure_tree(int fd) {
  struct level *levels = NULL;
  size_t count = 0, room = 0;
  bool is_complete = true;
  for (;;) {
    if (fd >= 0) {
      struct stat status;
      if (count == room) {
        struct level *larger = realloc(levels, (room = room * 2 + 64) * sizeof *levels);
        if (larger == NULL) break;
        levels = larger;
      }
      bool is_known = fstat(fd, &status) == 0;
      levels[count++] = (struct level){.fd = fd, .device = status.st_dev, .number = status.st_ino};
      fd = -1;
      if (!is_known || !(is_complete = read_level(&levels[count - 1]))) break;
      if (count > HELD_LEVELS + 1) {
        close(levels[count - 2].fd);
        levels[count - 2].fd = -1;
      }
    }
    if (count == 0) break;
    struct level *level = &levels[count - 1];
    if (level->next < level->length) {
      const char *name = level->names + level->next;
      level->next += strlen(name) + 1;
      fd = openat(level->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (fd < 0) has_changed = true;
      continue;
    }
    if (count > 1 && levels[count - 2].fd < 0) {
      levels[count - 2].fd = reopen_parent(&levels[count - 2], level->fd);
      if (levels[count - 2].fd < 0) break;
    }
    close(level->fd);
    free(level->names);
    count--;
  }
  is_complete = is_complete && count == 0 && fd < 0;
  if (fd >= 0) close(fd);
  while (count > 0) {
    struct level *level = &levels[--count];
    if (level->fd >= 0) close(level->fd);
    free(level->names);
  }
  free(levels);
  return is_complete;
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

struct nameless_files {
  struct nameless *found;
  size_t count, room;
};

/** Adds the file of a link in /proc if it has no name and is not in memory. */
static void add_nameless(struct nameless_files *files, const char *path) {
  struct stat status;
  struct statfs system;
  if (stat(path, &status) < 0 || !S_ISREG(status.st_mode) || status.st_nlink > 0) return;
  // Of its layers, or of a volume.
  if (statfs(path, &system) < 0 || system.f_type == MEMORY || system.f_type == HUGE_PAGES) return;
  if (files->count == files->room) {
    struct nameless *larger = realloc(files->found, (files->room * 2 + 64) * sizeof *larger);
    if (larger == NULL) return;
    files->room = files->room * 2 + 64;
    files->found = larger;
  }
  files->found[files->count++] = (struct nameless){status.st_dev, status.st_ino, status.st_blocks};
}

static void add_open_files(struct nameless_files *files, int pid, const char *thread) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "/proc/%d/task/%.20s/fd", pid, thread);
  DIR *descriptors = opendir(path);
  for (struct dirent *entry; descriptors != NULL && (entry = readdir(descriptors)) != NULL;) {
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/fd/%.20s", pid, thread, entry->d_name);
    if (entry->d_name[0] != '.') add_nameless(files, path);
  }
  if (descriptors != NULL) closedir(descriptors);
}

/** A thread may have a separate table of descriptors, or outlive the main thread. */
static void add_threads(struct nameless_files *files, int pid) {
  char path[PATH_MAX];
  int last = 0;
  snprintf(path, sizeof path, "/proc/%d/task", pid);
  DIR *threads = opendir(path);
  for (struct dirent *entry; threads != NULL && (entry = readdir(threads)) != NULL;) {
    int thread = atoi(entry->d_name);
    if (thread == 0 || (last != 0 && syscall(SYS_kcmp, last, thread, KCMP_FILES, 0, 0) == 0)) continue;
    add_open_files(files, pid, entry->d_name);
    last = thread;
  }
  if (threads != NULL) closedir(threads);
}

static void add_mapped_files(struct nameless_files *files, int pid) {
  char path[PATH_MAX], *line = NULL;
  size_t room = 0;
  unsigned long from, to;
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  FILE *maps = fopen(path, "re");
  while (maps != NULL && getline(&line, &room, maps) > 0) {
    if (strstr(line, " (deleted)\n") == NULL || sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    snprintf(path, sizeof path, "/proc/%d/map_files/%lx-%lx", pid, from, to);
    add_nameless(files, path);
  }
  free(line);
  if (maps != NULL) fclose(maps);
}

/** Adds removed files that are still open or mapped, each once. Processes that end meanwhile hold none. */
static void measure_nameless(const char *processes) {
  struct nameless_files files = {NULL, 0, 0};
  FILE *list = fopen(processes, "re");
  for (int pid; list != NULL && fscanf(list, "%d", &pid) == 1;) {
    add_threads(&files, pid);
    add_mapped_files(&files, pid);
  }
  if (list != NULL) fclose(list);
  if (files.count > 0) qsort(files.found, files.count, sizeof *files.found, compare_nameless);
  for (size_t index = 0; index < files.count; index++) {
    if (index > 0 && compare_nameless(&files.found[index - 1], &files.found[index]) == 0) continue;
    measured_bytes += (uint64_t)files.found[index].blocks * BLOCK_BYTES;
  }
  free(files.found);
}

/** The caller need not know the device of the directory. */
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
  // In blocks of 1 KiB, whatever the block size of the file system.
  uint64_t size = strtoull(mebibytes, NULL, 10);
  struct dqblk limits = {
      .dqb_bhardlimit = size * 1024, .dqb_ihardlimit = size * ENTRIES_PER_MEBIBYTE, .dqb_valid = QIF_LIMITS};
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

/** Tells a file system that what is below this directory does not belong together, as `chattr +T`. */
static int spread(const char *directory) {
  int flags, fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  int result = ioctl(fd, FS_IOC_GETFLAGS, &flags);
  if (result == 0) {
    flags |= FS_TOPDIR_FL;
    result = ioctl(fd, FS_IOC_SETFLAGS, &flags);
  }
  int error = errno;
  close(fd);
  errno = error;
  return result;
}

_Noreturn void answer_about_disk(const char **words, unsigned count, int say) {
  const char *question = words[0], *directory = words[1];
  uint32_t project = count > 2 ? (uint32_t)strtoul(words[2], NULL, 10) : 0;
  struct dqblk used = {0};
  int result = 0;
  if (strcmp(question, "enforced") == 0) {
    dprintf(say, "%d", is_enforced(directory));
  } else if (strcmp(question, "spread") == 0) {
    result = spread(directory);
  } else if (strcmp(question, "count") == 0) {
    entries_left = ULONG_MAX;
    least_bytes = ENTRY_BYTES;
    if (!measure_tree(open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC))) measured_bytes = INT64_MAX;
    dprintf(say, "%" PRIu64 " %lu", measured_bytes, ULONG_MAX - entries_left);
  } else if (strcmp(question, "measure") == 0) {
    entries_left = project;
    least_bytes = ENTRY_BYTES;
    // A tree that changes too fast to be measured counts as exceeding any limit.
    if (!measure_tree(open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC))) measured_bytes = INT64_MAX;
    if (count > 3) measure_nameless(words[3]);
    dprintf(say, "%" PRIu64 "%s", measured_bytes, has_changed ? " changed" : "");
  } else if (strcmp(question, "usage") == 0) {
    result = quota_of(directory, Q_GETQUOTA, project, &used);
    uint64_t least = (uint64_t)used.dqb_curinodes * ENTRY_BYTES;
    if (result == 0) dprintf(say, "%" PRIu64, used.dqb_curspace < least ? least : (uint64_t)used.dqb_curspace);
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
