#define _GNU_SOURCE
#include "instructions.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "disk.h"

// Descriptor paths of that many layers need little more than half a page.
enum { ARGUMENTS_LIMIT = 4, LAYERS_LIMIT = 128, WORDS_LIMIT = 16, KEPT_LIMIT = 16 };
// Descriptors of this process from here on are not those that the agent gets.
enum { FIRST_KEPT = 4, FIRST_OWN = FIRST_KEPT + KEPT_LIMIT };

static struct given given;
static int root = -1;
static int program = -1;
static int null = -1;
// Settings of the kernel, writable; `/proc/sys` is mounted over them, read-only.
static int settings = -1;

// Command line of a program other than the agent.
static const char *command[WORDS_LIMIT + 1];
static unsigned command_length;

// Descriptors that the agent gets after its listener.
static int kept[KEPT_LIMIT];
static unsigned kept_count;

// Path whose ids the failed instruction could not map.
static const char *unmapped;

static int open_target(const char *path) {
  if (root < 0) return open(path, O_PATH | O_CLOEXEC);
  struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
  return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

/** Opens the parent directory of a path, and returns its last component. */
static int open_parent(const char *path, const char **name) {
  static char parent[4096];
  const char *slash = strrchr(path, '/');
  if (slash == NULL || (size_t)(slash - path) >= sizeof parent - 1) {
    errno = EINVAL;
    return -1;
  }
  size_t length = slash == path ? 1 : (size_t)(slash - path);
  memcpy(parent, path, length);
  parent[length] = 0;
  *name = slash + 1;
  return open_target(parent);
}

static unsigned long mount_flags(const char *letters) {
  unsigned long flags = 0;
  for (; *letters != 0; letters++) {
    if (*letters == 'r') flags |= MS_RDONLY;
    if (*letters == 's') flags |= MS_NOSUID;
    if (*letters == 'd') flags |= MS_NODEV;
    if (*letters == 'x') flags |= MS_NOEXEC;
  }
  return flags;
}

/** Keeps errno. */
static void close_after(int fd) {
  int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
}

static const char *descriptor_path(int fd) {
  static char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return path;
}

static int mount_at(const char *target, const char *type, unsigned long flags, const char *data) {
  int fd = open_target(target);
  if (fd < 0) return -1;
  int result = mount(type, descriptor_path(fd), type, flags, data);
  close(fd);
  return result;
}

/** @param path for the error message. */
static int set_attributes(int tree, uint64_t attributes, const char *path) {
  struct mount_attr wanted = {.attr_set = attributes};
  if (attributes == 0) return 0;
  if (attributes & MOUNT_ATTR_IDMAP) wanted.userns_fd = (uint64_t)given.users;
  int result = (int)syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &wanted, sizeof wanted);
  if (result < 0 && attributes & MOUNT_ATTR_IDMAP) unmapped = path;
  return result;
}

static int move_tree(int tree, int target) {
  return (int)syscall(SYS_move_mount, tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

/**
 * @param place a scratch directory: kernels before 6.15 take detached layers only from a path.
 * @return the descriptor of the layer: where the sandbox could see it, it has no path.
 */
static int open_layer(const char *path, int place) {
  // Where each id stands for itself, the file system may be one without mapped mounts.
  if (given.users < 0 || given.first == 0) return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  int tree = (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  if (tree < 0) return -1;
  if (set_attributes(tree, MOUNT_ATTR_IDMAP, path) == 0 && move_tree(tree, place) == 0) return tree;
  close_after(tree);
  return -1;
}

static int mount_overlay(const char *target, const char *options) {
  // Without `volatile`, the end of each sandbox would flush all of the host's pending writes.
  static const char *const extras[] = {",volatile", ""};
  // The kernel reads at most a page.
  char data[4096];
  for (unsigned index = 0; index < 2; index++) {
    if (snprintf(data, sizeof data, "%s%s", options, extras[index]) >= (int)sizeof data) {
      errno = E2BIG;
      return -1;
    }
    if (mount_at(target, "overlay", 0, data) == 0) return 0;
    if (errno != EINVAL) return -1;
  }
  return -1;
}

/** @param lowers separated by colons. */
static int overlay(const char *target, const char *lowers, const char *layer, const char *more) {
  char options[4096] = "", *paths = strdup(lowers), *rest = paths;
  int descriptors[LAYERS_LIMIT], place = open(layer, O_PATH | O_DIRECTORY | O_CLOEXEC);
  unsigned count = 0;
  int result = place < 0 ? -1 : 0;
  // The layer first: its path may lead below the target, which gets mounted over.
  static const char *const names[] = {".", "upper", "work"}, *const keys[] = {"", "upperdir=", ",workdir="};
  for (unsigned index = 0; result == 0 && index < 3; index++) {
    int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = index == 0 ? open_layer(layer, place) : openat(descriptors[0], names[index], flags);
    if (fd < 0) result = -1;
    else descriptors[count++] = fd;
    if (result == 0 && index > 0) strcat(strcat(options, keys[index]), descriptor_path(fd));
  }
  for (char *path; result == 0 && (path = strsep(&rest, ":")) != NULL;) {
    errno = E2BIG;
    if (count == LAYERS_LIMIT || (descriptors[count] = open_layer(path, place)) < 0) result = -1;
    else strcat(strcat(options, count == 3 ? ",lowerdir=" : ":"), descriptor_path(descriptors[count]));
    if (result == 0) count++;
  }
  if (result == 0) result = mount_overlay(target, strcat(options, more));
  int error = errno;
  while (count > 0) close(descriptors[--count]);
  if (place >= 0) close(place);
  free(paths);
  errno = error;
  return result;
}

/** Works also if the target's path no longer resolves to it, because it was just mounted over. */
static int bind_descriptor(const char *source, int target, const char *letters) {
  static char target_path[32];
  strcpy(target_path, descriptor_path(target));
  int tree = (int)syscall(SYS_open_tree, AT_FDCWD, source, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
  if (tree < 0) return -1;
  uint64_t attributes = 0;
  for (; *letters != 0; letters++) {
    if (*letters == 'r') attributes |= MOUNT_ATTR_RDONLY;
    if (*letters == 's') attributes |= MOUNT_ATTR_NOSUID;
    if (*letters == 'd') attributes |= MOUNT_ATTR_NODEV;
    if (*letters == 'x') attributes |= MOUNT_ATTR_NOEXEC;
    if (*letters == 'm') attributes |= MOUNT_ATTR_IDMAP;
  }
  int result = set_attributes(tree, attributes, source);
  if (result == 0) result = move_tree(tree, target);
  close_after(tree);
  return result;
}

static int bind_at(const char *target, const char *source, const char *letters) {
  int fd = open_target(target);
  if (fd < 0) return -1;
  int result = bind_descriptor(source, fd, letters);
  close(fd);
  return result;
}

/**
 * Mounts a directory of the host over one of the root, which is created if missing. No component may be a link or
 * another kind of file.
 */
static int mount_volume(const char *target, const char *source, const char *letters) {
  static char path[4096];
  if (target[0] != '/' || strlen(target) >= sizeof path || root < 0) {
    errno = EINVAL;
    return -1;
  }
  strcpy(path, target + 1);
  int at = fcntl(root, F_DUPFD_CLOEXEC, 0);
  char *rest = path;
  for (char *name; at >= 0 && (name = strsep(&rest, "/")) != NULL;) {
    struct open_how how = {
        .flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
    };
    int next = mkdirat(at, name, 0755) < 0 && errno != EEXIST ? -1 : (int)syscall(SYS_openat2, at, name, &how, sizeof how);
    close_after(at);
    at = next;
  }
  if (at < 0) return -1;
  int result = bind_descriptor(source, at, letters);
  close_after(at);
  return result;
}

/** A missing path needs no hiding: kernels differ in what they show. */
static int read_only(const char *path) {
  int fd = open_target(path);
  if (fd < 0) return errno == ENOENT ? 0 : -1;
  static char source[32];
  strcpy(source, descriptor_path(fd));
  int result = bind_descriptor(source, fd, "r");
  close(fd);
  return result;
}

/** As `bind`, read-only; a missing target needs no cover. */
static int cover(const char *target, const char *source) {
  int fd = open_target(target);
  if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
  int result = bind_descriptor(source, fd, "rsdx");
  close(fd);
  return result;
}

static int detach(const char *path) {
  int fd = open_target(path);
  if (fd < 0) return -1;
  int result = umount2(descriptor_path(fd), MNT_DETACH);
  close_after(fd);
  return result;
}

static int keep(const char *path, const char *mode) {
  errno = E2BIG;
  if (kept_count == KEPT_LIMIT) return -1;
  bool is_inside = mode[0] == 'w';
  int target = is_inside ? open_target(path) : -1;
  if (is_inside && target < 0) return -1;
  int fd = open(is_inside ? descriptor_path(target) : path, (is_inside ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (target >= 0) close_after(target);
  if (fd < 0) return -1;
  kept[kept_count] = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_OWN);
  close_after(fd);
  return kept[kept_count++];
}

static int hide(const char *path) {
  struct stat status;
  int fd = open_target(path);
  if (fd < 0) return errno == ENOENT ? 0 : -1;
  int result = fstat(fd, &status);
  if (result == 0 && S_ISDIR(status.st_mode)) {
    result = mount("tmpfs", descriptor_path(fd), "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=0k,mode=755");
  } else if (result == 0) {
    static char source[32];
    strcpy(source, descriptor_path(null));
    result = bind_descriptor(source, fd, "r");
  }
  close(fd);
  return result;
}

/** Opened early, because its path may be covered later. */
static int open_null(const char *path) {
  int fd = open_target(path);
  if (fd < 0) return -1;
  null = open(descriptor_path(fd), O_RDWR | O_CLOEXEC);
  close(fd);
  return null;
}

static int write_new(int parent, const char *name, mode_t mode, const char *text) {
  int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0) return -1;
  bool is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  return close(fd) == 0 && is_written ? 0 : -1;
}

/** Makes a directory, a file, a link or a node of a device, by the letter of `kind`. */
static int make(char kind, const char *path, const char *second, const char *third) {
  const char *name;
  int parent = open_parent(path, &name), result = -1;
  if (parent < 0) return -1;
  mode_t mode = (mode_t)strtol(second, NULL, 8);
  if (kind == 'd') result = mkdirat(parent, name, mode);
  if (kind == 'f') result = write_new(parent, name, mode, third);
  if (kind == 'l') result = symlinkat(second, parent, name);
  if (kind == 'n') result = mknodat(parent, name, S_IFCHR | 0666, makedev((unsigned)atoi(second), (unsigned)atoi(third)));
  close_after(parent);
  return result;
}

static int enter(void) {
  if (fchdir(root) < 0) return -1;
  // An O_PATH descriptor still leads to what is mounted over it.
  if (syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) return -1;
  close(root);
  root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  return root;
}

static int mount_processes(const char *target) {
  if (mount_at(target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0) return -1;
  int fd = open_target(target);
  settings = openat(fd, "sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
  close_after(fd);
  return settings;
}

/** Lets every group of this network namespace send ICMP echo requests: ping(8) has no capability for raw sockets. */
static void allow_ping(void) {
  // A group without an id in the user namespace is refused, and an ordinary user has one group alone.
  static const char *const ranges[] = {"0 2147483647", "0 65535", "0 0"};
  int fd = settings < 0 ? -1 : openat(settings, "net/ipv4/ping_group_range", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  for (unsigned at = 0; at < 3 && write(fd, ranges[at], strlen(ranges[at])) < 0;) at++;
  close(fd);
}

static int loopback(void) {
  allow_ping();
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
  int result = fd < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &request);
  close(fd);
  return result;
}

static int join_group(const char *file) {
  int fd = open(file, O_WRONLY | O_CLOEXEC);
  int result = fd >= 0 && write(fd, "0", 1) == 1 ? 0 : -1;
  close_after(fd);
  return result;
}

static int limit_capabilities(const char *text) {
  uint64_t mask = strtoull(text, NULL, 16);
  for (int number = 0; number < 64; number++) {
    if (mask >> number & 1) continue;
    if (prctl(PR_CAPBSET_DROP, number, 0, 0, 0) < 0 && errno != EINVAL) return -1;
  }
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2] = {{(uint32_t)mask, (uint32_t)mask, 0}, {(uint32_t)(mask >> 32), (uint32_t)(mask >> 32), 0}};
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0) return -1;
  return (int)syscall(SYS_capset, &header, data);
}

static int set_root(const char *path) { return root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC); }

static int open_program(const char *path) {
  int tree = given.users < 0 ? -1 : (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  // Without the id mapping, users of the sandbox can open the program only if it is world-readable.
  bool is_mapped = tree >= 0 && set_attributes(tree, MOUNT_ATTR_IDMAP, path) == 0;
  program = open(is_mapped ? descriptor_path(tree) : path, O_RDONLY | O_CLOEXEC);
  unmapped = NULL;
  if (tree >= 0) close(tree);
  // Away from the descriptors that the program gets.
  return program < 0 ? -1 : (program = fcntl(program, F_DUPFD_CLOEXEC, FIRST_OWN));
}

/** Keeps the capabilities when the user id of root changes. */
static int own_what_is_made(void) {
  if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0) return -1;
  setfsgid(given.first);
  setfsuid(given.first);
  errno = EINVAL;
  return (id_t)setfsuid((uid_t)-1) == given.first ? 0 : -1;
}

static int join_users(void) {
  if (setgroups(0, NULL) < 0 || setns(given.users, CLONE_NEWUSER) < 0) return -1;
  if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0) return -1;
  close(given.users);
  given.users = -1;
  // In this user namespace, or its root could not serve low ports.
  return unshare(CLONE_NEWNET);
}

static int limit_resource(const char *name, const char *text) {
  static const struct {
    const char *name;
    int resource;
  } resources[] = {
      {"files", RLIMIT_NOFILE}, {"processes", RLIMIT_NPROC}, {"data", RLIMIT_DATA},
      {"core", RLIMIT_CORE},    {"file-size", RLIMIT_FSIZE}, {"cpu-seconds", RLIMIT_CPU},
  };
  rlim_t count = strtoull(text, NULL, 10);
  for (unsigned index = 0; index < sizeof resources / sizeof resources[0]; index++) {
    int resource = resources[index].resource;
    struct rlimit limit, wanted = {count, count};
    if (strcmp(resources[index].name, name) != 0) continue;
    if (setrlimit(resource, &wanted) == 0) return 0;
    if (errno != EPERM || getrlimit(resource, &limit) < 0) return -1;
    // Without the privilege to raise it, the hard limit is used.
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(resource, &limit);
  }
  errno = EINVAL;
  return -1;
}

static int add_argument(const char *word) {
  errno = E2BIG;
  if (command_length == WORDS_LIMIT) return -1;
  command[command_length++] = word;
  return 0;
}

struct instruction {
  const char *name;
  unsigned count;
};

static const struct instruction instructions[] = {
    {"join", 1},         {"own-groups", 0},        {"directory", 2},     {"file", 3},      {"link", 2},
    {"device", 3},       {"overlay", 4},           {"tmpfs", 3},         {"proc", 1},      {"devpts", 2},
    {"bind", 3},         {"root", 1},              {"read-only", 1},     {"hide", 1},      {"enter", 0},
    {"hostname", 1},     {"loopback", 0},          {"project-quota", 3}, {"program", 1},   {"resource-limit", 2},
    {"capabilities", 1}, {"no-new-privileges", 0}, {"system-calls", 0},  {"volume", 3},    {"null", 1},
    {"owner", 0},        {"users", 0},             {"argument", 1},      {"keep", 2},      {"cover", 2},
    {"detach", 1},
};

static int follow(const char *name, const char **arguments) {
  const char *first = arguments[0], *second = arguments[1], *third = arguments[2];
#define IS(word) (strcmp(name, word) == 0)
  if (IS("join")) return join_group(first);
  if (IS("own-groups")) return unshare(CLONE_NEWCGROUP);
  if (IS("directory")) return make('d', first, second, third);
  if (IS("overlay")) return overlay(first, second, third, arguments[3]);
  if (IS("tmpfs")) return mount_at(first, "tmpfs", mount_flags(second), third);
  if (IS("proc")) return mount_processes(first);
  if (IS("devpts")) return mount_at(first, "devpts", MS_NOSUID | MS_NOEXEC, second);
  if (IS("bind")) return bind_at(first, second, third);
  if (IS("volume")) return mount_volume(first, second, third);
  if (IS("root")) return set_root(first);
  if (IS("device")) return make('n', first, second, third);
  if (IS("owner")) return own_what_is_made();
  if (IS("users")) return join_users();
  if (IS("null")) return open_null(first);
  if (IS("file")) return make('f', first, second, third);
  if (IS("link")) return make('l', first, second, third);
  if (IS("read-only")) return read_only(first);
  if (IS("hide")) return hide(first);
  if (IS("keep")) return keep(first, second);
  if (IS("cover")) return cover(first, second);
  if (IS("detach")) return detach(first);
  if (IS("enter")) return enter();
  if (IS("hostname")) return sethostname(first, strlen(first));
  if (IS("loopback")) return loopback();
  if (IS("project-quota")) return limit_project(first, second, third);
  if (IS("program")) return open_program(first);
  if (IS("resource-limit")) return limit_resource(first, second);
  if (IS("capabilities")) return limit_capabilities(first);
  if (IS("argument")) return add_argument(first);
  if (IS("no-new-privileges")) return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
#undef IS
  return limit_system_calls();
}

static _Noreturn void give_up(int say, const char *what, const char *argument) {
  dprintf(say, "%s %s: %s", what, argument, strerror(errno));
  _exit(FAILED_INSTRUCTION);
}

/** Becomes the agent, with the listener as its descriptor 3 and what is kept after it. */
static void become_agent(void) {
  int descriptor = fcntl(given.listener, F_DUPFD_CLOEXEC, FIRST_OWN);
  for (int standard = 0; standard < 3; standard++) dup2(null, standard);
  dup2(descriptor, 3);
  for (unsigned index = 0; index < kept_count; index++) dup2(kept[index], FIRST_KEPT + (int)index);
  char first[16];
  snprintf(first, sizeof first, "%d", FIRST_KEPT);
  char *const plain[] = {"coppice-agent", "listen", "3", NULL};
  char *const showing[] = {"coppice-agent", "--shown", first, "listen", "3", NULL};
  char *const environment[] = {NULL};
  syscall(SYS_execveat, program, "", kept_count > 0 ? showing : plain, environment, AT_EMPTY_PATH);
}

/** Becomes a program that writes its output to `say`, and ends with the launcher. */
static void become_command(int say) {
  char *const environment[] = {NULL};
  dup2(null, 0);
  dup2(say, 1);
  dup2(say, 2);
  umask(022);
  // Only now: a change of the user takes it back.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0) return;
  syscall(SYS_execveat, program, "", command, environment, AT_EMPTY_PATH);
}

_Noreturn void follow_instructions(const char **words, unsigned count, struct given what, int say) {
  given = what;
  umask(0);
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) give_up(say, "make mounts private", "");
  for (unsigned at = 0; at < count;) {
    const char *name = words[at++];
    const struct instruction *found = NULL;
    for (unsigned index = 0; index < sizeof instructions / sizeof instructions[0]; index++) {
      if (strcmp(instructions[index].name, name) == 0) found = &instructions[index];
    }
    errno = EINVAL;
    if (found == NULL || count - at < found->count) give_up(say, "unknown instruction", name);
    const char *arguments[ARGUMENTS_LIMIT] = {"", "", "", ""};
    for (unsigned index = 0; index < found->count; index++) arguments[index] = words[at + index];
    if (follow(name, arguments) < 0) {
      give_up(say, unmapped == NULL ? name : "map-ids", unmapped == NULL ? arguments[0] : unmapped);
    }
    at += found->count;
  }
  errno = EINVAL;
  if (given.users >= 0) give_up(say, "join", "the user namespace");
  if (program < 0) _exit(0);
  if (setsid() < 0) give_up(say, "setsid", "");
  say = fcntl(say, F_DUPFD_CLOEXEC, FIRST_OWN);
  null = fcntl(null, F_DUPFD_CLOEXEC, FIRST_OWN);
  if (command_length > 0) become_command(say);
  else become_agent();
  give_up(say, "execute", command_length > 0 ? command[0] : "the agent");
}
