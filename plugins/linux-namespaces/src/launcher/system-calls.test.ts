import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { after, before, describe, it } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import { type TestBackend, openTestBackend, reasonToSkip } from "../testing/test-backend.js";
import { makeSandbox, runScript } from "../testing/test-sandbox.js";

/** Makes each call in a separate child, because some kill it or block, and prints the error numbers. */
const EVERY_CALL = `
import ctypes, os, select, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
for number in range(601):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
        os.write(writer, b"%d" % (ctypes.get_errno() if result == -1 else 0))
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writer)
    answer = os.read(reader, 16) if select.select([reader], [], [], 1)[0] else b"waits"
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(number, answer.decode() or "ended")
`;

const ARGUMENTS = `
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
def tell(name, result):
    print(name, "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()])
def tell_socket(name, family, protocol, kind=socket.SOCK_DGRAM):
    try:
        socket.socket(family, kind, protocol).close()
        print(name, "ok")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
flags = ctypes.c_long(0)
# Each account has its own: hosts deny root what another one made in a directory like /tmp.
file = os.open(f"/tmp/flags-{os.getuid()}", os.O_CREAT | os.O_RDWR)
attributes = ctypes.create_string_buffer(28)
for name, command, value in (
    ("GETFLAGS", 0x80086601, ctypes.byref(flags)), ("SETFLAGS", 0x40086602, ctypes.byref(flags)),
    ("SETFLAGS32", 0x40046602, ctypes.byref(flags)), ("FSSETXATTR", 0x401c5820, attributes),
):
    tell(name, libc.ioctl(file, command, value))
for name, family, protocol in (
    ("unix", 1, 0), ("inet", 2, 0), ("inet6", 10, 0), ("route", 16, 0), ("sock_diag", 16, 4), ("audit", 16, 9),
    ("kobject_uevent", 16, 15), ("netfilter", 16, 12), ("crypto", 16, 21), ("alg", 38, 0), ("vsock", 40, 0),
):
    tell_socket(name, family, protocol)
for name, kind, protocol in (
    ("tcp", 1, 6), ("tcp, cloexec", 1 | socket.SOCK_CLOEXEC, 0), ("udp", 2, 17), ("ping", 2, 1), ("mptcp", 1, 262), ("sctp", 1, 132),
    ("sctp by kind", 5, 0), ("dccp", 6, 33), ("dccp by kind", 6, 0), ("l2tp", 2, 115), ("udplite", 2, 136),
):
    tell_socket(name, 2, protocol, kind)
    if name != "ping": tell_socket(name + " over IPv6", 10, protocol, kind)
tell("fixed addresses", libc.personality(0x40000))
tell("mmap at zero", libc.personality(0x100000))
tell("own directory", libc.unshare(0x200))
tell("user namespace", libc.unshare(0x10000000))
tell("time namespace", libc.unshare(0x80))
`;

/** Calls a number that is getpid in the 32-bit convention, and writev in others. */
const CALL_OF_32_BITS = `
import ctypes, mmap
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(bytes.fromhex("b814000000cd80c3"))
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))())
`;

/** A pool of processes per start method, with shared memory. */
const POOLS = `
import multiprocessing
if __name__ == "__main__":
    for way in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(way).Pool(2) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
`;
/** Builds the archive that pip installs. */
const WHEEL = `
from zipfile import ZipFile
about = "made-1.dist-info/"
with ZipFile("/tmp/made-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("made.py", "")
    wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: made\\nVersion: 1\\n")
    wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(about + "RECORD", "")
`;
const COMMIT = "-c user.name=one -c user.email=one@example.org commit --allow-empty -m one";
const HEADLESS = "--headless --no-sandbox --disable-gpu --dump-dom";

/** Of sockets of both internet families. */
const answersOf = (names: readonly string[], answer: string) =>
  Object.fromEntries(names.flatMap((name) => [name, `${name} over IPv6`]).map((name) => [name, answer]));

const ANSWERS: Readonly<Record<string, string>> = {
  "SETFLAGS": "EPERM",
  "SETFLAGS32": "EPERM",
  "FSSETXATTR": "EPERM",
  "unix": "ok",
  "inet": "ok",
  "inet6": "ok",
  "route": "ok",
  "sock_diag": "ok",
  // libaudit reads this as a kernel without audit, so sudo works.
  "audit": "EPROTONOSUPPORT",
  "kobject_uevent": "EPROTONOSUPPORT",
  "netfilter": "EPROTONOSUPPORT",
  "crypto": "EPROTONOSUPPORT",
  "alg": "EAFNOSUPPORT",
  "vsock": "EAFNOSUPPORT",
  ...answersOf(["tcp", "tcp, cloexec", "udp"], "ok"),
  "ping": "ok",
  ...answersOf(
    ["mptcp", "sctp", "sctp by kind", "dccp", "dccp by kind", "l2tp", "udplite"],
    "EPROTONOSUPPORT",
  ),
  "fixed addresses": "ok",
  "mmap at zero": "EPERM",
  "own directory": "ok",
  "user namespace": "EPERM",
  "time namespace": "EPERM",
};

/** Calls of x86_64 that a sandbox is denied, up to the last one that all supported kernels have. */
const DENIED = ranges(
  // clone, because of the flags used here; syslog, ustat, sysfs
  [56, 103, 134, 136, 139],
  // vhangup, modify_ldt, pivot_root, _sysctl
  [[153, 156]],
  // settimeofday to nfsservctl: mounts, swap, reboot, host names, raw I/O, modules, quotas
  [163, [164, 185], 212, [214, 215]],
  // clock_settime, vserver, mbind to get_mempolicy, kexec_load, keys
  [227, [236, 239], 246, [248, 250]],
  // migrate_pages, unshare (see above), move_pages, perf_event_open, fanotify, handles, setns, kcmp, finit_module
  [256, 272, 279, 298, [300, 301], [303, 304], 308, [312, 313]],
  // kexec_file_load, bpf, userfaultfd, numbers of no call
  [[320, 321], 323, [337, 423]],
  // io_uring, mounts, clone3, pidfd_getfd
  [[425, 433], 435, 438],
);
/** Denied by the kernel itself: setsid to a leader, setgroups to a user; futex, thread areas. */
const OTHERWISE_DENIED = [112, 116, 202, 205, 211];

describe("system calls in a sandbox of linux-namespaces", { skip: reasonToSkip() ?? false }, () => {
  let opened: TestBackend;
  let sandbox: Sandbox;

  before(async () => {
    opened = await openTestBackend();
    sandbox = await makeSandbox(opened.backend);
  });
  after(async () => {
    await sandbox.destroy();
    await opened[Symbol.asyncDispose]();
  });

  const python = async (source: string, user?: string): Promise<readonly string[]> => {
    const { exit, output } = await runScript(sandbox, `/usr/bin/python3 -c '${source}'`, user);
    assert.deepEqual(exit, { code: 0 }, output);
    return output.trim().split("\n");
  };

  it("are exactly those of the list, for every user", async (context) => {
    if (process.arch !== "x64") return context.skip("the numbers are those of x86_64");
    for (const user of ["user", "root"]) {
      const answers = new Map((await python(EVERY_CALL, user)).map((line) => splitInTwo(line)));
      const isDenied = (number: number) => ["1", "38"].includes(answers.get(String(number)) ?? "");
      const denied = [...Array(440).keys()].filter((number) => isDenied(number));
      const expected = denied.filter((number) => DENIED.has(number) || OTHERWISE_DENIED.includes(number));
      assert.deepEqual(denied, expected, `${user} is denied what the list has`);
      for (const number of DENIED) assert.ok(isDenied(number), `${user} may use ${number}`);
      for (const number of [442, 443, 450, 460]) assert.ok(isDenied(number), `${user} may use ${number}`);
      for (let number = 467; number <= 600; number++) assert.equal(answers.get(String(number)), "38");
      for (const number of [426, 435, 457]) assert.equal(answers.get(String(number)), "38", `${number}`);
    }
  });

  it("exclude the 32-bit convention, whose numbers differ", async (context) => {
    if (process.arch !== "x64") return context.skip("the instructions are those of x86_64");
    const host = spawnSync("/usr/bin/python3", ["-c", CALL_OF_32_BITS], { encoding: "utf8" });
    if (host.status !== 0) return context.skip("this kernel has none of 32 bits");
    const ENOSYS = -38;
    for (const user of ["user", "root"])
      assert.deepEqual(await python(CALL_OF_32_BITS, user), [String(ENOSYS)]);
  });

  it("are restricted to harmless arguments", async () => {
    for (const user of ["user", "root"]) {
      const answers = Object.fromEntries((await python(ARGUMENTS, user)).map((line) => splitInTwo(line)));
      const { GETFLAGS: read, ...others } = answers;
      assert.notEqual(read, "EPERM");
      assert.deepEqual(others, ANSWERS, user);
    }
  });

  it("suffice for debuggers, setuid programs, and programs with threads, children and terminals", async (context) => {
    const programs = [
      ["strace", "strace -f -o /dev/null /bin/sh -c 'true; true'"],
      ["gdb", "gdb -nx -batch -ex run /bin/true | grep 'exited normally'"],
      ["perl", "perl -e 'exit(fork ? wait > 0 ? 0 : 1 : 0)'"],
      ["node", "node -e 'new (require(`worker_threads`).Worker)(`1`, { eval: true })'"],
      ["node", "node -e 'require(`child_process`).fork(`/dev/null`).on(`exit`, process.exit)'"],
      ["python3", `cat > /tmp/pools.py << 'END'\n${POOLS}END\npython3 /tmp/pools.py`],
      [
        "pip",
        `python3 -c '${WHEEL}' && pip install --no-index /tmp/made-1-py3-none-any.whl && python3 -c 'import made'`,
      ],
      ["make", "printf 'all: a b\\na b:\\n\\techo $@\\n' > /tmp/Makefile && make -j2 -f /tmp/Makefile"],
      [
        "git",
        `cd /tmp && git init one && git -C one ${COMMIT} && git clone file:///tmp/one two && git -C two gc`,
      ],
      ["script", "script -qec tty /dev/null | grep /dev/pts/"],
      ["tmux", "tmux -f /dev/null new-session -d cat && tmux kill-server"],
      ["chromium", `chromium ${HEADLESS} 'data:text/html,<script>document.write(6*7)</script>' | grep 42`],
      ["sudo", "sudo -n true && sudo -n -i true && sudo -n -u www-data id -un | grep www-data"],
      ["apt-get", "su -c 'apt-get --version'"],
      ["su", "su -c 'test $(id -u) = 0 && su user -c id' | grep 'uid=1000(user)'"],
      ["passwd", "passwd --status user && ! chage --list root"],
      ["useradd", "su -c 'useradd third && id third && userdel third'"],
      ["java", "java -version"],
      ["setarch", "setarch -R true"],
      ["ip", "ip address show lo"],
      ["ss", "ss --tcp"],
    ] as const;
    for (const [program, script] of programs) {
      const { exit } = await runScript(sandbox, `command -v ${program}`);
      if (exit.code !== 0) {
        context.diagnostic(`the host has no ${program}`);
        continue;
      }
      const ran = await runScript(sandbox, script);
      assert.deepEqual(ran.exit, { code: 0 }, `${script}: ${ran.output}`);
    }
  });
});

function splitInTwo(line: string): [string, string] {
  const space = line.lastIndexOf(" ");
  return [line.slice(0, space), line.slice(space + 1)];
}

/** @param parts numbers, and pairs of the first and last of a range. */
function ranges(...parts: readonly (readonly (number | readonly [number, number])[])[]): ReadonlySet<number> {
  const numbers = new Set<number>();
  for (const part of parts.flat()) {
    const [first, last] = typeof part === "number" ? [part, part] : part;
    for (let number = first; number <= last; number++) numbers.add(number);
  }
  return numbers;
}
