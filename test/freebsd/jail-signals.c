// Whom a process in a jail can signal. FreeBSD's kernel finds no process of others (sys/kern/kern_prot.c, p_cansignal and
// cr_cansignal: prison_check, ESRCH). Linux looks at users alone, who are the same inside and outside: here each process
// of a jail asks, by seccomp_unotify(2), a process of the host for it, one for each jail.
//
// Not here: setpriority(2) of others, F_SETOWN, and who sent what goes to a group with members outside.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "jail-table.h"

enum { MOST_LISTENERS = 4096, FIXED = 2 };

/** Calls whose first argument is a process, or 0 for the caller with all but kill(2). */
static const uint32_t calls[] = {SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_pidfd_open,
                                 SYS_prlimit64, SYS_sched_setaffinity, SYS_sched_setparam, SYS_sched_setscheduler, SYS_sched_setattr};
enum { CALLS = sizeof calls / sizeof calls[0] };

static struct sockaddr_un address_of(const char *jail) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", in_table("signals"), jail);
  return address;
}

int submit_signals(int warden) {
  struct sock_filter program[CALLS + 6];
  unsigned length = 0;
  program[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (unsigned index = 0; index < CALLS; index++) {
    // kill(0, …) is for a group.
    uint8_t target = (uint8_t)(CALLS - index + (index == 0 ? 2 : 0));
    program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[index], target, 0);
  }
  program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  program[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
  program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0);
  program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
  program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog filter = {(unsigned short)length, program};
  int listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
  if (listener < 0) return -1;
  char none = 0, control[CMSG_SPACE(sizeof listener)] = {0};
  struct iovec part = {&none, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof listener), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(header), &listener, sizeof listener);
  bool is_sent = sendmsg(warden, &message, 0) == 1;
  close(listener);
  close(warden);
  return is_sent ? 0 : -1;
}

int reach_warden(const struct jail *jail) {
  struct sockaddr_un address = address_of(jail->name);
  int warden = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return connect(warden, (struct sockaddr *)&address, sizeof address) < 0 ? -1 : warden;
}

static int receive_listener(int server) {
  int listener = -1, client = accept4(server, NULL, NULL, SOCK_CLOEXEC);
  char none, control[CMSG_SPACE(sizeof listener)];
  struct iovec part = {&none, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  // What becomes a process of the jail sends it in the next moment, or ends.
  struct cmsghdr *header = recvmsg(client, &message, MSG_CMSG_CLOEXEC) == 1 ? CMSG_FIRSTHDR(&message) : NULL;
  if (header != NULL) memcpy(&listener, CMSG_DATA(header), sizeof listener);
  close(client);
  return listener;
}

static uid_t user_of(pid_t pid) {
  char path[32];
  struct stat status;
  snprintf(path, sizeof path, "/proc/%d", (int)pid);
  return stat(path, &status) == 0 ? status.st_uid : (uid_t)-1;
}

/** Signals a group, or all for 0, but nobody outside. @return 1 where the kernel may do it, since all are inside. */
static int signal_group(const struct jail *jail, pid_t sender, pid_t group, int number) {
  unsigned inside = 0, outside = 0, sent = 0;
  uid_t user = user_of(sender);
  for (unsigned round = 0; round < 2; round++) {
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes != NULL && (entry = readdir(processes)) != NULL;) {
      pid_t pid = (pid_t)atoi(entry->d_name);
      if (pid <= 0 || (group > 0 ? getpgid(pid) != group : pid == sender)) continue;
      bool is_inside = is_in_jail(pid, jail);
      if (round == 0) *(is_inside ? &inside : &outside) += 1;
      else if (is_inside && (user == 0 || user_of(pid) == user) && kill(pid, number) == 0) sent++;
    }
    if (processes != NULL) closedir(processes);
    if (inside == 0) return -ESRCH;
    if (outside == 0 && group > 0) return 1;
  }
  return sent > 0 ? 0 : -EPERM;
}

static void answer(const struct jail *jail, int listener) {
  struct seccomp_notif asked = {0};
  if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) < 0) return;
  pid_t target = (pid_t)asked.data.args[0];
  int result;
  if (asked.data.nr == SYS_kill && target <= 0) {
    pid_t group = target == 0 ? getpgid((pid_t)asked.pid) : target == -1 ? 0 : -target;
    result = signal_group(jail, (pid_t)asked.pid, group, (int)asked.data.args[1]);
  } else {
    result = is_in_jail(target, jail) ? 1 : -ESRCH;
  }
  struct seccomp_notif_resp said = {.id = asked.id, .error = result > 0 ? 0 : result};
  if (result > 0) said.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &said);
}

static _Noreturn void watch(const struct jail *jail, int server) {
  static struct pollfd polled[FIXED + MOST_LISTENERS];
  polled[0] = (struct pollfd){(int)syscall(SYS_pidfd_open, jail->init, 0), POLLIN, 0};
  polled[1] = (struct pollfd){server, POLLIN, 0};
  for (nfds_t count = FIXED; poll(polled, count, -1) >= 0 || errno == EINTR;) {
    if (polled[0].revents != 0) break;
    for (nfds_t index = count; index-- > FIXED;) {
      if (polled[index].revents & POLLIN) answer(jail, polled[index].fd);
      if (!(polled[index].revents & (POLLHUP | POLLERR))) continue;
      close(polled[index].fd);
      polled[index] = polled[--count];
    }
    if (polled[1].revents == 0 || count == FIXED + MOST_LISTENERS) continue;
    int listener = receive_listener(server);
    if (listener >= 0) polled[count++] = (struct pollfd){listener, POLLIN, 0};
  }
  _exit(0);
}

int start_warden(const struct jail *jail) {
  struct sockaddr_un address = address_of(jail->name);
  int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  unlink(address.sun_path);
  if (bind(server, (struct sockaddr *)&address, sizeof address) < 0 || listen(server, 64) < 0) return -1;
  pid_t pid = fork();
  if (pid == 0) {
    setsid();
    int null = open("/dev/null", O_RDWR);
    for (int standard = 0; standard < 3; standard++) dup2(null, standard);
    dup2(server, 3);
    syscall(SYS_close_range, 4u, ~0u, 0u);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    watch(jail, 3);
  }
  close(server);
  return pid < 0 ? -1 : 0;
}
