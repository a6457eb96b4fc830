#define _GNU_SOURCE
#include "jail-table.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int limit_system_calls(void);

enum { MOST_JAILS = 1024, DYING_MS = 60000 };

static char table[TEXT_BYTES];

void open_table(void) {
  char path[TEXT_BYTES];
  // Not the first word, which has no directory where a shell found the program by PATH.
  snprintf(path, sizeof path, "%s", (const char *)getauxval(AT_EXECFN));
  snprintf(table, sizeof table, "%s/../state", dirname(path));
}

const char *in_table(const char *name) {
  static char path[2 * TEXT_BYTES];
  snprintf(path, sizeof path, "%s/%s", table, name);
  return path;
}

static bool read_jail(const char *folder, const char *file, struct jail *jail) {
  char path[2 * TEXT_BYTES];
  snprintf(path, sizeof path, "%s/%s/%s", table, folder, file);
  FILE *stream = fopen(path, "re");
  if (stream == NULL) return false;
  int init;
  bool is_whole = fscanf(stream, "%d %d %255s %255s %1023[^\n]", &jail->jid, &init, jail->name, jail->hostname, jail->path) == 5;
  jail->init = init;
  fclose(stream);
  return is_whole;
}

static int by_number(const void *one, const void *other) {
  return ((const struct jail *)one)->jid - ((const struct jail *)other)->jid;
}

bool is_dying(const char *name) {
  char path[2 * TEXT_BYTES];
  struct stat status;
  struct timespec now;
  snprintf(path, sizeof path, "%s/dying/%s", table, name);
  if (stat(path, &status) < 0 || clock_gettime(CLOCK_REALTIME, &now) < 0) return false;
  long milliseconds = (now.tv_sec - status.st_ctim.tv_sec) * 1000 + (now.tv_nsec - status.st_ctim.tv_nsec) / 1000000;
  if (milliseconds < DYING_MS) return true;
  unlink(path);
  return false;
}

static void each_in(const char *folder, void (*visit)(const struct jail *jail)) {
  static struct jail jails[MOST_JAILS];
  unsigned count = 0;
  char path[2 * TEXT_BYTES];
  snprintf(path, sizeof path, "%s/%s", table, folder);
  DIR *directory = opendir(path);
  if (directory == NULL) return;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL && count < MOST_JAILS;) {
    if (entry->d_name[0] != '.' && read_jail(folder, entry->d_name, &jails[count])) count++;
  }
  closedir(directory);
  qsort(jails, count, sizeof *jails, by_number);
  for (unsigned index = 0; index < count; index++) visit(&jails[index]);
}

void each_jail(void (*visit)(const struct jail *jail)) { each_in("jails", visit); }

static void (*visit_dying)(const struct jail *jail);

static void if_dying(const struct jail *jail) {
  if (is_dying(jail->name)) visit_dying(jail);
}

void each_dying_jail(void (*visit)(const struct jail *jail)) {
  visit_dying = visit;
  each_in("dying", if_dying);
}

static const char *wanted;
static struct jail found;

static void compare(const struct jail *jail) {
  char number[16];
  snprintf(number, sizeof number, "%d", jail->jid);
  if (strcmp(jail->name, wanted) == 0 || strcmp(number, wanted) == 0) found = *jail;
}

bool find_jail(const char *which, struct jail *jail) {
  // A name that is all digits is a number.
  if (strspn(which, "0123456789") != strlen(which)) return strchr(which, '/') == NULL && read_jail("jails", which, jail);
  wanted = which;
  found.jid = 0;
  each_jail(compare);
  *jail = found;
  return found.jid != 0;
}

const char *reason_without(const char *which) {
  static char reason[2 * TEXT_BYTES];
  bool is_number = strspn(which, "0123456789") == strlen(which);
  snprintf(reason, sizeof reason, is_number ? "jail %s not found" : is_dying(which) ? "jail \"%s\" is dying" : "jail \"%s\" not found", which);
  return reason;
}

bool write_jail(const struct jail *jail) {
  char path[2 * TEXT_BYTES], whole[2 * TEXT_BYTES];
  snprintf(path, sizeof path, "%s/jails/.%s", table, jail->name);
  snprintf(whole, sizeof whole, "%s/jails/%s", table, jail->name);
  FILE *stream = fopen(path, "we");
  if (stream == NULL) return false;
  fprintf(stream, "%d %d %s %s %s\n", jail->jid, (int)jail->init, jail->name, jail->hostname, jail->path);
  return fclose(stream) == 0 && rename(path, whole) == 0;
}

void forget_jail(const struct jail *jail) {
  char path[2 * TEXT_BYTES], dying[2 * TEXT_BYTES];
  snprintf(path, sizeof path, "%s/jails/%s", table, jail->name);
  snprintf(dying, sizeof dying, "%s/dying/%s", table, jail->name);
  if (rename(path, dying) < 0) unlink(path);
  snprintf(path, sizeof path, "%s/signals/%s", table, jail->name);
  unlink(path);
}

/** By the namespace of mounts, of which each jail has one. */
bool is_in_jail(pid_t pid, const struct jail *jail) {
  char path[64], one[64] = "", other[64] = "";
  snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)pid);
  if (pid <= 0 || pid == jail->init || readlink(path, one, sizeof one - 1) < 0) return false;
  snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)jail->init);
  return readlink(path, other, sizeof other - 1) > 0 && strcmp(one, other) == 0;
}

int next_jid(void) {
  int fd = open(in_table("jid"), O_RDWR | O_CREAT | O_CLOEXEC, 0600), jid = 0;
  char text[16] = "";
  if (fd < 0 || flock(fd, LOCK_EX) < 0) return -1;
  if (pread(fd, text, sizeof text - 1, 0) >= 0) jid = atoi(text) + 1;
  int length = snprintf(text, sizeof text, "%d\n", jid);
  bool is_written = pwrite(fd, text, (size_t)length, 0) == length;
  close(fd);
  return is_written ? jid : -1;
}

/**
 * Capabilities of a jail's root: own files, change users, serve low ports, see other users' processes; none that reaches
 * the kernel, or what is outside of its user namespace.
 */
static const uint64_t CAPABILITIES =
    1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 18 | 1 << 19 | 1 << 29;

int confine(void) {
  for (int number = 0; number < 64; number++) {
    if (CAPABILITIES >> number & 1) continue;
    if (prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0 && errno != EINVAL) return -1;
  }
  // Before the capability is gone that it takes.
  if (limit_system_calls() < 0) return -1;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  uint32_t low = (uint32_t)CAPABILITIES;
  struct __user_cap_data_struct data[2] = {{low, low, 0}, {0, 0, 0}};
  return (int)syscall(SYS_capset, &header, data);
}
