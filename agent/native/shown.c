// A lease on each file stops its readers in open(2) until it is written anew: nothing is done while nobody looks.
#include "shown.h"

#include "platform.h"

#ifdef COPPICE_IS_FREEBSD
void shown_open(int first) { (void)first; }
int shown_descriptor(void) { return -1; }
void shown_ready(void) {}
void shown_renew(void) {}
#else
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#ifndef F_SETLEASE
enum { F_SETLEASE = 1024, F_GETLEASE = 1025 };
#endif

enum { MEMORY_LIMIT, MEMORY_USED, MEMORY_PARTS, CPU_QUOTA, CPU_USED, HOST_PROCESSORS, HOST_STATISTICS, SOURCES };
enum { MEMORY, PROCESSORS, STATISTICS, ONLINE, FILES };
enum { TEXT_BYTES = 1 << 19, PERIOD_MICROS = 100000, TICKS_PER_SECOND = 100, STALE_MS = 50 };

static int sources[SOURCES], files[FILES];
static int events = -1;
static bool is_open;
static int64_t renewed_ms;
static time_t began;
static uint64_t boot_time;
static unsigned shown_count;
static char text[TEXT_BYTES], input[TEXT_BYTES];
static size_t length;

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/** Reads a source into `input`. */
static void load(int source) {
  size_t count = 0;
  ssize_t more = 1;
  while (more > 0 && count < sizeof input - 1) {
    more = pread(sources[source], input + count, sizeof input - 1 - count, (off_t)count);
    if (more > 0) count += (size_t)more;
  }
  input[count] = 0;
}

static const char *line_of(const char *prefix, const char *name) {
  size_t before = strlen(prefix), size = strlen(name);
  for (const char *line = input; line != NULL; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (strncmp(line, prefix, before) == 0 && strncmp(line + before, name, size) == 0 && line[before + size] == ' ') {
      return line + before + size;
    }
  }
  return NULL;
}

/** The number after a name in a line of `input`; in version 1 that of all groups below, too. */
static uint64_t field(const char *name) {
  const char *number = line_of("total_", name);
  if (number == NULL) number = line_of("", name);
  return number == NULL ? 0 : strtoull(number, NULL, 10);
}

static void add(const char *format, ...) {
  va_list values;
  va_start(values, format);
  int count = vsnprintf(text + length, sizeof text - length, format, values);
  va_end(values);
  if (count > 0 && (size_t)count < sizeof text - length) length += (size_t)count;
}

static void publish(int file) {
  // In place, and shortened last: a reader that has it open sees an old file or a new one, hardly ever a mixture.
  if (pwrite(files[file], text, length, 0) == (ssize_t)length) (void)!ftruncate(files[file], (off_t)length);
  length = 0;
}

static uint64_t least(uint64_t one, uint64_t other) { return one < other ? one : other; }
static uint64_t without(uint64_t whole, uint64_t part) { return whole > part ? whole - part : 0; }

static void show_memory(void) {
  struct sysinfo host;
  if (sysinfo(&host) < 0) return;
  load(MEMORY_LIMIT);
  uint64_t total = (uint64_t)host.totalram * host.mem_unit;
  if (input[0] >= '0' && input[0] <= '9') total = least(total, strtoull(input, NULL, 10));
  load(MEMORY_USED);
  uint64_t used = least(total, strtoull(input, NULL, 10));
  load(MEMORY_PARTS);
  uint64_t active = field("active_file"), inactive = field("inactive_file"), shared = field("shmem");
  uint64_t cached = field("file") + field("cache"), anonymous = field("anon") + field("rss");
  uint64_t slab = field("slab_reclaimable"), held = field("slab_unreclaimable");
  cached = least(cached, used);
  struct {
    const char *name;
    uint64_t bytes;
  } const lines[] = {
      {"MemTotal", total},
      {"MemFree", total - used},
      {"MemAvailable", least(total, total - used + active + inactive + slab)},
      {"Buffers", 0},
      {"Cached", cached},
      {"SwapCached", 0},
      {"Active", field("active_anon") + active},
      {"Inactive", field("inactive_anon") + inactive},
      {"Active(anon)", field("active_anon")},
      {"Inactive(anon)", field("inactive_anon")},
      {"Active(file)", active},
      {"Inactive(file)", inactive},
      {"Unevictable", field("unevictable")},
      {"Mlocked", 0},
      {"SwapTotal", 0},
      {"SwapFree", 0},
      {"Dirty", field("file_dirty") + field("dirty")},
      {"Writeback", field("file_writeback") + field("writeback")},
      {"AnonPages", anonymous},
      {"Mapped", field("file_mapped") + field("mapped_file")},
      {"Shmem", shared},
      {"KReclaimable", slab},
      {"Slab", slab + held},
      {"SReclaimable", slab},
      {"SUnreclaim", held},
      {"KernelStack", field("kernel_stack")},
      {"PageTables", field("pagetables")},
  };
  for (unsigned index = 0; index < sizeof lines / sizeof lines[0]; index++) {
    char name[24];
    snprintf(name, sizeof name, "%s:", lines[index].name);
    add("%-16s%8llu kB\n", name, (unsigned long long)(lines[index].bytes / 1024));
  }
  publish(MEMORY);
}

/** Processors that the quota of time is worth, rounded up. */
static unsigned processors(void) {
  char *end;
  cpu_set_t usable;
  // Not sysconf(3): it opens one of the files, for whose lease it would wait.
  unsigned most = sched_getaffinity(0, sizeof usable, &usable) < 0 ? 1 : (unsigned)CPU_COUNT(&usable);
  load(CPU_QUOTA);
  long long quota = strtoll(input, &end, 10), period = strtoll(end, NULL, 10);
  if (end == input || quota <= 0) return most;
  if (period <= 0) period = PERIOD_MICROS;
  unsigned count = (unsigned)((quota + period - 1) / period);
  return count < most ? count : most;
}

static void show_processors(unsigned count) {
  load(HOST_PROCESSORS);
  char *end = input;
  // A block for each, which begins with its number.
  for (unsigned seen = 0; (end = strstr(end, "processor\t:")) != NULL; end++) {
    if (seen++ < count) continue;
    *end = 0;
    break;
  }
  add("%s", input);
  publish(PROCESSORS);
  add(count > 1 ? "0-%u\n" : "0\n", count - 1);
  publish(ONLINE);
}

static void add_times(const char *name, uint64_t busy, uint64_t all) {
  add("%s %llu 0 0 %llu 0 0 0 0 0 0\n", name, (unsigned long long)busy, (unsigned long long)without(all, busy));
}

/** Processor time of the sandbox alone, since its first process, spread evenly. */
static void show_statistics(unsigned count) {
  struct timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  load(CPU_USED);
  uint64_t used = field("usage_usec") * TICKS_PER_SECOND / 1000000;
  if (used == 0) used = strtoull(input, NULL, 10) / (1000000000 / TICKS_PER_SECOND);
  uint64_t all = (uint64_t)(now.tv_sec - began) * TICKS_PER_SECOND;
  add_times("cpu ", used, all * count);
  for (unsigned index = 0; index < count; index++) {
    char name[24];
    snprintf(name, sizeof name, "cpu%u", index);
    add_times(name, used / count, all);
  }
  add("intr 0\nctxt 0\nbtime %llu\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n",
      (unsigned long long)boot_time);
  publish(STATISTICS);
}

/** Takes the leases that nobody else's open file stands against. */
static void lease(void) {
  for (unsigned index = 0; index < FILES; index++) fcntl(files[index], F_SETLEASE, F_WRLCK);
}

void shown_renew(void) {
  if (!is_open) return;
  unsigned count = processors();
  show_memory();
  // The kernel takes long to describe many processors.
  if (count != shown_count) show_processors(count);
  shown_count = count;
  show_statistics(count);
  renewed_ms = now_ms();
  for (unsigned index = 0; index < FILES; index++) {
    if (fcntl(files[index], F_GETLEASE) != F_WRLCK) fcntl(files[index], F_SETLEASE, F_UNLCK);
  }
}

void shown_open(int first) {
  struct timespec now;
  char link[32];
  clock_gettime(CLOCK_BOOTTIME, &now);
  began = now.tv_sec;
  is_open = true;
  // Where none is left to be had the files show the first look at them, and are not empty.
  events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  for (unsigned index = 0; index < SOURCES + FILES; index++) {
    int fd = first + (int)index;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (index < SOURCES) {
      sources[index] = fd;
      continue;
    }
    files[index - SOURCES] = fd;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (events >= 0) inotify_add_watch(events, link, IN_ACCESS | IN_CLOSE_NOWRITE);
  }
  load(HOST_STATISTICS);
  boot_time = field("btime");
  shown_renew();
  lease();
}

int shown_descriptor(void) { return events; }

void shown_ready(void) {
  char buffer[4096];
  while (read(events, buffer, sizeof buffer) > 0) continue;
  // For one that keeps a file open and reads it again and again.
  if (now_ms() - renewed_ms > STALE_MS) shown_renew();
  lease();
}
#endif
