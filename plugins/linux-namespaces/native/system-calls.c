// System calls of a sandbox: Docker's default profile (moby, profiles/seccomp/default.json) for a container with our
// capabilities; differences are explained below. Other calls fail with EPERM, and those newer than this list with
// ENOSYS, so that programs fall back.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "instructions.h"

#if defined __x86_64__
#define NATIVE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define NATIVE AUDIT_ARCH_AARCH64
#else
#error "this machine's system calls are not known here"
#endif

#define CALL(name) SYS_##name

// Denied here, allowed by Docker: io_uring (denied by containerd); name_to_handle_at and fanotify_mark (useless without
// open_by_handle_at and fanotify_init, which both deny); modify_ldt (needed by 16-bit programs alone).
// Denied by Docker without the capability: keyctl and related calls, bpf, perf_event_open, userfaultfd, kcmp,
// pidfd_getfd, process_madvise, mounts, modules, clocks, and the memory policies of NUMA (libnuma reads EPERM
// as a machine without NUMA).
static const uint16_t allowed[] = {
    CALL(accept), CALL(accept4), CALL(adjtimex), CALL(bind), CALL(brk), CALL(capget), CALL(capset), CALL(chdir),
    CALL(chroot), CALL(clock_adjtime), CALL(clock_getres), CALL(clock_gettime), CALL(clock_nanosleep), CALL(close),
    CALL(close_range), CALL(connect), CALL(copy_file_range), CALL(dup), CALL(dup3), CALL(epoll_create1),
    CALL(epoll_ctl), CALL(epoll_pwait), CALL(epoll_pwait2), CALL(eventfd2), CALL(execve), CALL(execveat), CALL(exit),
    CALL(exit_group), CALL(faccessat), CALL(faccessat2), CALL(fadvise64), CALL(fallocate), CALL(fchdir), CALL(fchmod),
    CALL(fchmodat), CALL(fchown), CALL(fchownat), CALL(fcntl), CALL(fdatasync), CALL(fgetxattr), CALL(flistxattr),
    CALL(flock), CALL(fremovexattr), CALL(fsetxattr), CALL(fstat), CALL(fstatfs), CALL(fsync), CALL(ftruncate),
    CALL(futex), CALL(get_robust_list), CALL(getcpu), CALL(getcwd), CALL(getdents64), CALL(getegid), CALL(geteuid),
    CALL(getgid), CALL(getgroups), CALL(getitimer), CALL(getpeername), CALL(getpgid), CALL(getpid), CALL(getppid),
    CALL(getpriority), CALL(getrandom), CALL(getresgid), CALL(getresuid), CALL(getrlimit), CALL(getrusage),
    CALL(getsid), CALL(getsockname), CALL(getsockopt), CALL(gettid), CALL(gettimeofday), CALL(getuid), CALL(getxattr),
    CALL(inotify_add_watch), CALL(inotify_init1), CALL(inotify_rm_watch), CALL(io_cancel), CALL(io_destroy),
    CALL(io_getevents), CALL(io_pgetevents), CALL(io_setup), CALL(io_submit), CALL(ioprio_get), CALL(ioprio_set),
    CALL(kill), CALL(lgetxattr), CALL(linkat), CALL(listen), CALL(listxattr), CALL(llistxattr), CALL(lremovexattr),
    CALL(lseek), CALL(lsetxattr), CALL(madvise), CALL(membarrier), CALL(memfd_create), CALL(mincore), CALL(mkdirat),
    CALL(mknodat), CALL(mlock), CALL(mlock2), CALL(mlockall), CALL(mmap), CALL(mprotect), CALL(mq_getsetattr),
    CALL(mq_notify), CALL(mq_open), CALL(mq_timedreceive), CALL(mq_timedsend), CALL(mq_unlink), CALL(mremap),
    CALL(msgctl), CALL(msgget), CALL(msgrcv), CALL(msgsnd), CALL(msync), CALL(munlock), CALL(munlockall), CALL(munmap),
    CALL(nanosleep), CALL(newfstatat), CALL(openat), CALL(openat2), CALL(pidfd_open), CALL(pidfd_send_signal),
    CALL(pipe2), CALL(pkey_alloc), CALL(pkey_free), CALL(pkey_mprotect), CALL(ppoll), CALL(prctl), CALL(pread64),
    CALL(preadv), CALL(preadv2), CALL(process_vm_readv), CALL(process_vm_writev), CALL(pselect6),
    CALL(ptrace), CALL(pwrite64), CALL(pwritev), CALL(pwritev2), CALL(read), CALL(readahead), CALL(readlinkat),
    CALL(readv), CALL(recvfrom), CALL(recvmmsg), CALL(recvmsg), CALL(remap_file_pages), CALL(removexattr),
    CALL(renameat), CALL(renameat2), CALL(restart_syscall), CALL(rseq), CALL(rt_sigaction), CALL(rt_sigpending),
    CALL(rt_sigprocmask), CALL(rt_sigqueueinfo), CALL(rt_sigreturn), CALL(rt_sigsuspend), CALL(rt_sigtimedwait),
    CALL(rt_tgsigqueueinfo), CALL(sched_get_priority_max), CALL(sched_get_priority_min), CALL(sched_getaffinity),
    CALL(sched_getattr), CALL(sched_getparam), CALL(sched_getscheduler), CALL(sched_rr_get_interval),
    CALL(sched_setaffinity), CALL(sched_setattr), CALL(sched_setparam), CALL(sched_setscheduler), CALL(sched_yield),
    CALL(seccomp), CALL(semctl), CALL(semget), CALL(semop), CALL(semtimedop), CALL(sendfile), CALL(sendmmsg),
    CALL(sendmsg), CALL(sendto), CALL(set_robust_list), CALL(set_tid_address), CALL(setfsgid), CALL(setfsuid),
    CALL(setgid), CALL(setgroups), CALL(setitimer), CALL(setpgid), CALL(setpriority), CALL(setregid), CALL(setresgid),
    CALL(setresuid), CALL(setreuid), CALL(setrlimit), CALL(setsid), CALL(setsockopt), CALL(setuid), CALL(setxattr),
    CALL(shmat), CALL(shmctl), CALL(shmdt), CALL(shmget), CALL(shutdown), CALL(sigaltstack), CALL(signalfd4),
    CALL(socketpair), CALL(splice), CALL(statfs), CALL(statx), CALL(symlinkat), CALL(sync), CALL(sync_file_range),
    CALL(syncfs), CALL(sysinfo), CALL(tee), CALL(tgkill), CALL(timer_create), CALL(timer_delete),
    CALL(timer_getoverrun), CALL(timer_gettime), CALL(timer_settime), CALL(timerfd_create), CALL(timerfd_gettime),
    CALL(timerfd_settime), CALL(times), CALL(tkill), CALL(truncate), CALL(umask), CALL(uname), CALL(unlinkat),
    CALL(utimensat), CALL(vmsplice), CALL(wait4), CALL(waitid), CALL(write), CALL(writev),
#if defined __x86_64__
    CALL(access), CALL(alarm), CALL(arch_prctl), CALL(chmod), CALL(chown), CALL(creat), CALL(dup2), CALL(epoll_create),
    CALL(epoll_wait), CALL(eventfd), CALL(fork), CALL(futimesat), CALL(get_thread_area), CALL(getdents), CALL(getpgrp),
    CALL(inotify_init), CALL(lchown), CALL(link), CALL(lstat), CALL(mkdir), CALL(mknod), CALL(open), CALL(pause),
    CALL(pipe), CALL(poll), CALL(readlink), CALL(rename), CALL(rmdir), CALL(select), CALL(set_thread_area),
    CALL(signalfd), CALL(stat), CALL(symlink), CALL(time), CALL(unlink), CALL(utime), CALL(utimes), CALL(vfork),
    // Without it a program that the host's root traces would be killed.
    335 /* uretprobe */,
#endif
    // Newer than the headers of Debian 11; all machines give them the same numbers.
    444 /* landlock_create_ruleset */, 445 /* landlock_add_rule */, 446 /* landlock_restrict_self */,
    447 /* memfd_secret */, 448 /* process_mrelease */, 449 /* futex_waitv */, 451 /* cachestat */, 452 /* fchmodat2 */,
    453 /* map_shadow_stack */, 454 /* futex_wake */, 455 /* futex_wait */, 456 /* futex_requeue */, 462 /* mseal */,
    463 /* setxattrat */, 464 /* getxattrat */, 465 /* listxattrat */, 466 /* removexattrat */,
};

// Programs fall back from these: clone3 to clone, because its flags are in memory, where a filter cannot read them.
static const uint16_t absent[] = {
    CALL(clone3), CALL(io_uring_setup), CALL(io_uring_enter), CALL(io_uring_register),
    457 /* statmount */, 458 /* listmount */, 459 /* lsm_get_self_attr */, 461 /* lsm_list_modules */,
};

#define ANSWER(what) BPF_STMT(BPF_RET | BPF_K, what)
#define ALLOW ANSWER(SECCOMP_RET_ALLOW)
#define DENY_WITH(error) ANSWER(SECCOMP_RET_ERRNO | (error))
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF_IS(value, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), then, otherwise)
#define IF_HAS(bits, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (uint32_t)(bits), then, otherwise)
#define NEW_NAMESPACES \
  (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
enum { NEW_TIME_NAMESPACE = 0x80, SET_FLAGS_OF_32_BITS = 0x40046602, TYPE_WITHOUT_FLAGS = 0xf };

static const struct sock_filter clone_rule[] = {
    LOAD(args[0]), IF_HAS(NEW_NAMESPACES, 0, 1), DENY_WITH(EPERM), ALLOW,
};
// Docker denies all of it, but some programs need a separate directory or table of descriptors.
static const struct sock_filter unshare_rule[] = {
    LOAD(args[0]), IF_HAS(NEW_NAMESPACES | NEW_TIME_NAMESPACE, 0, 1), DENY_WITH(EPERM), ALLOW,
};
// The first would let root inside take its files out of their project quota; with the others an owner can keep new
// files out of it. The flags are in memory, so all flags are denied.
static const struct sock_filter ioctl_rule[] = {
    LOAD(args[1]), IF_IS(FS_IOC_FSSETXATTR, 2, 0), IF_IS(FS_IOC_SETFLAGS, 1, 0), IF_IS(SET_FLAGS_OF_32_BITS, 0, 1),
    DENY_WITH(EPERM), ALLOW,
};
// Families that a network namespace confines, and the netlink families for routes and sockets in it. libaudit, used by
// sudo and PAM, reads this error as a kernel without audit. Of the internet families TCP, UDP and ICMP alone: for others
// the host's kernel loads modules (SCTP, DCCP, L2TP), whoever asks, and programs fall back from MPTCP.
static const struct sock_filter socket_rule[] = {
    LOAD(args[0]), IF_IS(AF_UNIX, 19, 0), IF_IS(AF_INET, 7, 0), IF_IS(AF_INET6, 6, 0), IF_IS(AF_NETLINK, 1, 0),
    DENY_WITH(EAFNOSUPPORT),
    LOAD(args[2]), IF_IS(NETLINK_ROUTE, 13, 0), IF_IS(NETLINK_SOCK_DIAG, 12, 0), DENY_WITH(EPROTONOSUPPORT),
    LOAD(args[1]), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, TYPE_WITHOUT_FLAGS), IF_IS(SOCK_SEQPACKET, 7, 0),
    IF_IS(SOCK_DCCP, 6, 0),
    LOAD(args[2]), IF_IS(0, 5, 0), IF_IS(IPPROTO_TCP, 4, 0), IF_IS(IPPROTO_UDP, 3, 0), IF_IS(IPPROTO_ICMP, 2, 0),
    IF_IS(IPPROTO_ICMPV6, 1, 0),
    DENY_WITH(EPROTONOSUPPORT), ALLOW,
};
// Docker's five, and fixed addresses (ADDR_NO_RANDOMIZE) for debuggers and sanitizers, which weaken only the caller.
static const struct sock_filter personality_rule[] = {
    LOAD(args[0]), IF_IS(PER_LINUX, 6, 0), IF_IS(PER_LINUX32, 5, 0), IF_IS(UNAME26, 4, 0),
    IF_IS(PER_LINUX32 | UNAME26, 3, 0), IF_IS(ADDR_NO_RANDOMIZE, 2, 0), IF_IS(0xffffffff, 1, 0), DENY_WITH(EPERM),
    ALLOW,
};
// Otherwise root inside could set limits of the agent, the first process, so that it could neither open files nor wait.
static const struct sock_filter prlimit64_rule[] = {
    LOAD(args[0]), IF_IS(1, 0, 1), DENY_WITH(EPERM), ALLOW,
};

#define RULE(name) {CALL(name), name##_rule, sizeof name##_rule / sizeof name##_rule[0]}
static const struct rule {
  uint16_t number;
  const struct sock_filter *code;
  unsigned length;
} rules[] = {RULE(clone), RULE(unshare), RULE(ioctl), RULE(socket), RULE(personality), RULE(prlimit64)};
enum { RULES = sizeof rules / sizeof rules[0] };

/** Decision on a call. Other values are numbers of rules. */
enum { ALLOWED = RULES, DENIED, ABSENT };
/** One past the last number of this list. */
enum { END = 467, MOST_LINES = 1024 };

static uint8_t decisions[END + 1];
static struct sock_filter lines[MOST_LINES];
static unsigned count;

static unsigned add(struct sock_filter line) {
  lines[count] = line;
  return count++;
}

/**
 * Emits a binary search for numbers in [from, to): with some 60 ranges, a call takes six or seven comparisons.
 * Decisions by number alone are cached by the kernel, without running the filter.
 */
static void decide(unsigned from, unsigned to) {
  unsigned bounds[END + 2], found = 0;
  for (unsigned number = from + 1; number < to; number++) {
    if (decisions[number] != decisions[number - 1]) bounds[found++] = number;
  }
  if (found == 0) {
    uint8_t decision = decisions[from];
    if (decision == ALLOWED) add((struct sock_filter)ALLOW);
    else if (decision == DENIED) add((struct sock_filter)DENY_WITH(EPERM));
    else if (decision == ABSENT) add((struct sock_filter)DENY_WITH(ENOSYS));
    else for (unsigned line = 0; line < rules[decision].length; line++) add(rules[decision].code[line]);
    return;
  }
  unsigned middle = bounds[found / 2];
  add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, middle, 0, 1));
  // A conditional jump cannot reach across the lower half.
  unsigned across = add((struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, 0));
  decide(from, middle);
  lines[across].k = count - across - 1;
  decide(middle, to);
}

int limit_system_calls(void) {
  for (unsigned number = 0; number < END; number++) decisions[number] = DENIED;
  decisions[END] = ABSENT;
  for (unsigned index = 0; index < sizeof allowed / sizeof allowed[0]; index++) decisions[allowed[index]] = ALLOWED;
  for (unsigned index = 0; index < sizeof absent / sizeof absent[0]; index++) decisions[absent[index]] = ABSENT;
  for (unsigned index = 0; index < RULES; index++) decisions[rules[index].number] = (uint8_t)index;
  count = 0;
  // Other calling conventions have other numbers, for which this list would be wrong. Those of x32 are higher.
  add((struct sock_filter)LOAD(arch));
  add((struct sock_filter)IF_IS(NATIVE, 1, 0));
  add((struct sock_filter)DENY_WITH(ENOSYS));
  add((struct sock_filter)LOAD(nr));
  decide(0, END + 1);
  struct sock_fprog code = {(unsigned short)count, lines};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &code, 0, 0);
}
