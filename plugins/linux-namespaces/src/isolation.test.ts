import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";
import { once } from "node:events";
import { after, before, describe, it } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import { readInit, sandboxPaths } from "./launcher/sandbox-record.js";
import { type TestBackend, wholeLimits, openTestBackend, reasonToSkip } from "./testing/test-backend.js";
import { makeSandbox, runScript } from "./testing/test-sandbox.js";

const CONNECT_ABSTRACT = `
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect("\\0" + sys.argv[1])
    print("reached")
except OSError as error:
    print(error.strerror)
`;

const LEAVE_PROJECT = `
import fcntl, struct
with open("/tmp/counted", "w") as file:
    try:
        fcntl.ioctl(file, 0x401c5820, struct.pack("IIIII8x", 0, 0, 0, 7, 0))
        print("left")
    except OSError as error:
        print(error.strerror)
`;

describe("a sandbox of linux-namespaces", { skip: reasonToSkip() ?? false, concurrency: 1 }, () => {
  let opened: TestBackend;
  let sandbox: Sandbox;

  before(async () => {
    opened = await openTestBackend({ limits: { memoryMiB: 256, processes: 64 } });
    sandbox = await makeSandbox(opened.backend);
  });
  after(async () => {
    await sandbox.destroy();
    await opened[Symbol.asyncDispose]();
  });

  const asRoot = (script: string) => runScript(sandbox, script, "root");

  it("cannot see the host's homes, state and secrets, even as root", async () => {
    const secret = await mkdtemp(join(homedir(), ".coppice-secret-"));
    await writeFile(join(secret, "key"), "secret");
    try {
      const places = [
        secret,
        `/proc/1/root${secret}`,
        `/proc/self/root${secret}`,
        opened.directory,
        "/etc/ssh",
      ];
      for (const place of [
        ...places,
        "/var/log/dpkg.log",
        "/proc/1/cwd/root",
        "/sys/class",
        "/boot",
        "/proc/1/environ",
      ]) {
        const { exit, output } = await asRoot(`ls -d '${place}' && cat '${place}'`);
        assert.notDeepEqual(exit, { code: 0 }, `${place} is visible: ${output}`);
      }
      assert.equal(
        (await asRoot("ls -A /root /home/user /mnt /srv")).output.replace(/\/.*:\n/g, "").trim(),
        "",
      );
      assert.doesNotMatch(
        (await asRoot("find /sys ! -path '/sys/devices/system/cpu*'")).output,
        /\/sys\/(?!devices(\/system)?$)/m,
      );
    } finally {
      await rm(secret, { recursive: true });
    }
  });

  it("has mounts with minimal permissions", async () => {
    const volume = { id: "flags", sizeMiB: 16 };
    await opened.backend.volumes.make(volume);
    const mounts = ["/kept", "/shown"].map((path) => ({
      volume: volume.id,
      path,
      readOnly: path === "/shown",
    }));
    const own = await makeSandbox(opened.backend, { mounts });
    try {
      const { output } = await runScript(own, "cut -d' ' -f5,6 /proc/self/mountinfo", "root");
      const flags = new Map(
        output.split("\n").map((line) => {
          const [place = "", options = ""] = line.split(" ");
          return [
            place,
            options.split(",").filter((option) => /^(ro|nosuid|nodev|noexec)$/.test(option)),
          ] as const;
        }),
      );
      const wanted: Readonly<Record<string, readonly string[]>> = {
        "/usr": ["ro", "nodev"],
        "/dev": ["nosuid", "noexec"],
        "/dev/pts": ["nosuid", "noexec"],
        "/dev/shm": ["nosuid", "nodev"],
        "/proc": ["nosuid", "nodev", "noexec"],
        "/kept": ["nosuid", "nodev"],
        "/shown": ["ro", "nosuid", "nodev"],
      };
      for (const [place, expected] of Object.entries(wanted))
        assert.deepEqual(flags.get(place), expected, place);
      const inProc = [...flags].filter(([place]) => place.startsWith("/proc/"));
      // Covered even if the kernel denies them to root of a sandbox.
      const hidden = [
        "acpi",
        "kallsyms",
        "key-users",
        "keys",
        "kmsg",
        "kpagecount",
        "slabinfo",
        "timer_list",
        "vmallocinfo",
      ];
      for (const name of hidden.filter((one) => existsSync(`/proc/${one}`)))
        assert.ok(flags.has(`/proc/${name}`), `/proc/${name} is not covered`);
      for (const [place, found] of inProc)
        assert.deepEqual(
          found.filter((flag) => flag !== "nodev"),
          ["ro", "nosuid", "noexec"],
          place,
        );
    } finally {
      await own.destroy();
      await opened.backend.volumes.remove(volume.id);
    }
  });

  it(
    "has none of the server's groups",
    { skip: process.getuid?.() !== 0 && "it has to be root" },
    async () => {
      const groups = process.getgroups?.() ?? [];
      process.setgroups?.([65_432]);
      // Its launcher is a child of this process.
      await using own = await openTestBackend({});
      process.setgroups?.(groups);
      const made = await makeSandbox(own.backend);
      try {
        const { output } = await runScript(made, "grep ^Groups: /proc/1/status /proc/self/status", "root");
        assert.doesNotMatch(output, /65432|65534/);
        assert.match(output, /\/proc\/1\/status:Groups/);
      } finally {
        await made.destroy();
      }
    },
  );

  it("inherits no environment variable of the server", async () => {
    process.env["COPPICE_TEST_SECRET"] = "in the server's environment";
    try {
      const other = await makeSandbox(opened.backend);
      const { output } = await runScript(
        other,
        "env; cat /proc/*/environ 2> /dev/null | tr '\\0' '\\n'",
        "root",
      );
      assert.doesNotMatch(output, /COPPICE_TEST_SECRET|NODE_/);
      await other.destroy();
    } finally {
      delete process.env["COPPICE_TEST_SECRET"];
    }
  });

  it("cannot mount, make devices, load modules, make namespaces or change the kernel's settings", async () => {
    const attempts = [
      "mount -t tmpfs none /mnt",
      "mount --bind /usr /mnt",
      "mount -o remount,rw /usr",
      "umount /proc/sys",
      "mknod /tmp/disk b 254 0",
      "unshare -U true",
      "unshare -m true",
      "nsenter -t 1 -m true",
      "echo x > /proc/sys/kernel/core_pattern",
      "echo c > /proc/sysrq-trigger",
      "touch /usr/bin/here",
      "chroot / mount -t proc proc /mnt",
      "hostname elsewhere",
      "dmesg",
      "date -s 2001-01-01",
    ];
    for (const attempt of attempts) {
      const { exit, output } = await asRoot(attempt);
      assert.ok(exit.code !== 0 && exit.code !== 127, `${attempt}: ${JSON.stringify(exit)} ${output}`);
    }
  });

  it("has ten capabilities and can gain no other, even as root", async () => {
    const { output } = await asRoot("grep -E 'Cap(Prm|Bnd|Amb)' /proc/self/status");
    assert.equal(output, "CapPrm:\t00000000200404fb\nCapBnd:\t00000000200404fb\nCapAmb:\t0000000000000000\n");
  });

  it("can write no kernel settings, sees its control group as the root, and dumps no core", async () => {
    // A hidden file is a device, whatever its directory reports.
    const own = "-path '/proc/[0-9]*' -o -path /proc/self -o -path /proc/thread-self -o -path /proc/pressure";
    const writable = `find /proc -mindepth 1 \\( ${own} \\) -prune -o ! -type l -perm /222 -print 2> /dev/null |
      while read -r path; do test -f "$path" && test -w "$path" && echo "$path"; done; true`;
    assert.equal((await asRoot(writable)).output, "");
    const { output } = await asRoot("cut -d: -f3 /proc/self/cgroup | sort -u; ulimit -Hc");
    assert.equal(output, "/\n0\n");
  });

  it("can ping without a capability", async () => {
    const echo = `use Socket; socket(S, PF_INET, SOCK_DGRAM, 1) or die $!;
      send(S, pack("CCn3", 8, 0, 0, 0, 1), 0, sockaddr_in(0, inet_aton("127.0.0.1"))) or die $!;
      recv(S, $answer, 64, 0); print unpack("C", $answer)`;
    const { output } = await runScript(sandbox, `perl -e '${echo}'`);
    assert.equal(output, "0");
  });

  it("has mounts over the entries of /proc that concern the host", async () => {
    const { output } = await asRoot("cut -d' ' -f5 /proc/self/mountinfo");
    const mounted = new Set(output.split("\n"));
    const changing = ["sys", "sysrq-trigger", "irq", "bus", "fs"];
    const telling = ["kcore", "keys", "key-users", "kallsyms", "kmsg", "kpagecount", "kpageflags", "modules"];
    // Root inside lacks the capabilities for most of them: that is the other line of defence.
    for (const name of [...changing, ...telling].filter((entry) => existsSync(`/proc/${entry}`)))
      assert.ok(mounted.has(`/proc/${name}`), name);
  });

  it("cannot take its files out of their project quota, even as root", async () => {
    const { output } = await asRoot(`python3 -c '${LEAVE_PROJECT}'`);
    assert.equal(output, "Operation not permitted\n");
  });

  it("cannot inspect, stop or kill its agent", async () => {
    const attempts = [
      "readlink /proc/1/fd/3",
      "cat /proc/1/fd/3",
      "readlink /proc/1/exe",
      "cat /proc/1/mem",
      "cat /proc/1/maps",
    ];
    for (const attempt of attempts) {
      const { exit, output } = await asRoot(attempt);
      assert.notDeepEqual(exit, { code: 0 }, `${attempt}: ${output}`);
    }
    for (const signal of ["KILL", "STOP", "TERM", "SEGV"]) await asRoot(`kill -${signal} 1`);
    const limit = "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))";
    assert.match((await asRoot(`python3 -c '${limit}'`)).output, /PermissionError/);
    assert.deepEqual((await asRoot("true")).exit, { code: 0 });
  });

  it("cannot see the host paths of its writable files", async () => {
    const { output } = await asRoot("cat /proc/self/mountinfo");
    assert.ok(output.includes("overlay"));
    assert.ok(!output.includes(opened.directory), output);
  });

  it("has an agent without descriptors of the host's /dev", async () => {
    const { pid } = (await readInit(sandboxPaths(join(opened.directory, "sandboxes", sandbox.id)))) ?? {};
    const inside = await stat(`/proc/${pid}/root/dev/null`);
    for (const descriptor of [0, 1, 2]) {
      const { dev, ino } = await stat(`/proc/${pid}/fd/${descriptor}`);
      assert.deepEqual({ dev, ino }, { dev: inside.dev, ino: inside.ino });
    }
  });

  it("does not reach abstract sockets or ports of the host and of other sandboxes", async () => {
    const name = `coppice-test-${sandbox.id}`;
    const server = createServer().listen(`\0${name}`);
    await once(server, "listening");
    const port = createServer().listen(0, "127.0.0.1");
    await once(port, "listening");
    try {
      const { output } = await asRoot(`python3 -c '${CONNECT_ABSTRACT}' '${name}'`);
      assert.equal(output.trim(), "Connection refused");
      const address = port.address();
      const number = typeof address === "object" ? address?.port : 0;
      await assert.rejects(sandbox.dial(number ?? 0, new AbortController().signal));
    } finally {
      server.close();
      port.close();
    }
  });

  it("lets its user become root without a password, which is root of the sandbox only", async (context) => {
    if ((await asRoot("command -v sudo")).exit.code !== 0) {
      context.skip("the host has no sudo");
      return;
    }
    const { output } = await runScript(sandbox, "sudo -n id -u; sudo -n grep CapBnd /proc/self/status");
    assert.match(output, /^0\nCapBnd:\t00000000200404fb\n$/);
  });

  it("keeps its setuid files out of reach of the host's users", async () => {
    await asRoot("cp /bin/true /tmp/suid && chmod 4755 /tmp/suid");
    // The directory above them may be one that everyone may enter.
    for (const name of ["images", "sandboxes", "snapshots", "templates", "volumes"]) {
      const { mode, uid } = await stat(join(opened.directory, name));
      assert.equal(uid, process.getuid?.());
      assert.equal(mode & 0o077, 0, `others can enter ${name}`);
    }
  });

  it("contains a fork bomb while the server and other sandboxes continue", async () => {
    const other = await makeSandbox(opened.backend);
    const bomb = runScript(sandbox, "b() { b | b & }; b; sleep 1; true");
    for (let round = 0; round < 10; round++) {
      assert.deepEqual((await runScript(other, "true")).exit, { code: 0 });
    }
    await other.destroy();
    // Otherwise it would continue for a minute or more.
    await sandbox.destroy();
    await bomb.catch(() => undefined);
    sandbox = await makeSandbox(opened.backend);
  });

  it("kills a process that exceeds its memory, and stays alive", async (context) => {
    if (!(await wholeLimits(opened.backend)).has("memoryMiB"))
      return context.skip("no control group holds memory");
    const { exit } = await asRoot("exec tail /dev/zero");
    assert.deepEqual(exit, { signal: "SIGKILL", shortage: { resource: "memory", limit: "256 MiB" } });
    assert.deepEqual((await asRoot("true")).exit, { code: 0 });
    const { memoryTotalBytes, memoryUsedBytes } = await sandbox.stats();
    assert.equal(memoryTotalBytes, 256 * 2 ** 20);
    assert.ok(memoryUsedBytes < memoryTotalBytes);
  });

  it("counts shared memory as memory", async (context) => {
    if (!(await wholeLimits(opened.backend)).has("memoryMiB"))
      return context.skip("no control group holds memory");
    const { exit } = await asRoot("dd if=/dev/zero of=/dev/shm/much bs=1M count=200");
    assert.notDeepEqual(exit, { code: 0 });
    await asRoot("rm -f /dev/shm/much");
  });
});
