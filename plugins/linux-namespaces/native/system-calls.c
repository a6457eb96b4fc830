// The system calls that a sandbox is denied: what acts on the kernel or on all of the host, what makes
// new namespaces or mounts, and what is known for its holes rather than for its use. All others pass.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
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

#define DENY_WITH(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define SKIP_UNLESS(value, count) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, count)
#define DENY(name) SKIP_UNLESS(SYS_##name, 1), DENY_WITH(EPERM)
#define ABSENT(name) SKIP_UNLESS(SYS_##name, 1), DENY_WITH(ENOSYS)
#define NEW_NAMESPACES \
  (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

static struct sock_filter filter[] = {
    // Another calling convention has other numbers, for which this list would be wrong.
    LOAD(arch), SKIP_UNLESS(NATIVE, 1), BPF_STMT(BPF_JMP | BPF_JA, 1), DENY_WITH(ENOSYS),
    LOAD(nr),
#if defined __x86_64__
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), DENY_WITH(ENOSYS),
    DENY(iopl), DENY(ioperm), DENY(modify_ldt), DENY(uselib), DENY(ustat), DENY(sysfs), DENY(_sysctl),
    DENY(create_module), DENY(get_kernel_syms), DENY(query_module), DENY(nfsservctl),
#endif
    DENY(mount), DENY(umount2), DENY(pivot_root), DENY(open_tree), DENY(move_mount), DENY(fsopen), DENY(fsconfig),
    DENY(fsmount), DENY(fspick), DENY(mount_setattr), DENY(setns), DENY(swapon), DENY(swapoff), DENY(quotactl),
    DENY(open_by_handle_at), DENY(name_to_handle_at),
    DENY(init_module), DENY(finit_module), DENY(delete_module), DENY(kexec_load), DENY(reboot), DENY(syslog),
    DENY(acct), DENY(settimeofday), DENY(clock_settime), DENY(adjtimex), DENY(clock_adjtime), DENY(vhangup),
    DENY(bpf), DENY(perf_event_open), DENY(userfaultfd), DENY(add_key), DENY(request_key), DENY(keyctl),
    DENY(lookup_dcookie), DENY(move_pages), DENY(mbind), DENY(set_mempolicy), DENY(migrate_pages),
    DENY(fanotify_init), DENY(process_vm_readv), DENY(process_vm_writev), DENY(kcmp),
    ABSENT(io_uring_setup), ABSENT(io_uring_enter), ABSENT(io_uring_register),
#ifdef SYS_kexec_file_load
    DENY(kexec_file_load),
#endif
#ifdef SYS_quotactl_fd
    DENY(quotactl_fd),
#endif
    // Its flags lie in memory, where a filter cannot read them; programs fall back to `clone`.
    ABSENT(clone3),
    SKIP_UNLESS(SYS_clone, 4), LOAD(args[0]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1), DENY_WITH(EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    SKIP_UNLESS(SYS_unshare, 4), LOAD(args[0]), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES | 0x80, 0, 1),
    DENY_WITH(EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    // Root inside could take its files out of the project whose quota they count for. (file_setattr has no name
    // in older headers.)
    SKIP_UNLESS(SYS_ioctl, 4), LOAD(args[1]), SKIP_UNLESS(FS_IOC_FSSETXATTR, 1), DENY_WITH(EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    SKIP_UNLESS(469, 1), DENY_WITH(ENOSYS),
    // Families that no namespace confines, or that only reach into the kernel.
    SKIP_UNLESS(SYS_socket, 7), LOAD(args[0]), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 4, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 3, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 2, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 1, 0), DENY_WITH(EAFNOSUPPORT),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

int deny_system_calls(void) {
  struct sock_fprog code = {sizeof filter / sizeof filter[0], filter};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &code, 0, 0);
}
