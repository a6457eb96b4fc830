import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { lstat, readdir } from "node:fs/promises";
import { createServer, type Server } from "node:net";
import { homedir, networkInterfaces, tmpdir } from "node:os";
import { dirname, join, relative, sep } from "node:path";
import type { Sandbox } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import type { Canary, ConformanceContext } from "../kit/conformance-context.js";
import { attackByLinkSwaps } from "../kit/link-swap-attack.js";
import { OutputReader } from "../kit/output-reader.js";
import { requireApart } from "../kit/require-apart.js";

const ATTACK_MS = 5_000;

/** Connects to its arguments, `host port` or `@name`; prints those that answer. */
const CONNECT = `
import socket, sys
for target in sys.argv[1:]:
    try:
        if target.startswith("@"):
            client = socket.socket(socket.AF_UNIX)
            address = "\\0" + target[1:]
        else:
            host, port = target.split(" ")
            client = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            address = (host, int(port))
        client.settimeout(0.5)
        client.connect(address)
        print(target)
    except OSError:
        pass
`;

/** Prints whether packets have a route out; sends none. */
const ROUTES = `
import socket
for family, host in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888")):
    try:
        client = socket.socket(family, socket.SOCK_DGRAM)
        client.settimeout(1)
        client.connect((host, 53))
        client.send(b"x")
        client.recv(1)
        print(host)
    except TimeoutError:
        print(host)
    except OSError:
        pass
for name in ("a", "b"):
    try:
        socket.getaddrinfo("example.com", 80)
        print("a name was found")
    except OSError:
        pass
`;

/** Tries system calls that reach the kernel or the first process; prints those that were not denied. */
const SYSTEM_CALLS = `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)

def attempt(name, call):
    try:
        if call() >= 0:
            print(name, flush=True)
    except (OSError, AttributeError):
        pass

os.makedirs("target", exist_ok=True)
attempt("mount tmpfs", lambda: libc.mount(b"none", b"target", b"tmpfs", 0, None))
attempt("mount proc", lambda: libc.mount(b"none", b"target", b"proc", 0, None))
attempt("bind mount", lambda: libc.mount(b"/", b"target", None, 4096, None))
attempt("remount", lambda: libc.mount(None, b"/", None, 32 | 4096, None))
attempt("umount", lambda: libc.umount2(b"/proc", 2))
attempt("pivot_root", lambda: libc.pivot_root(b".", b"target"))
attempt("ptrace", lambda: libc.ptrace(16, 1, None, None))
attempt("memory of the first process", lambda: os.open("/proc/1/mem", os.O_RDWR))
for kind in ("mnt", "pid", "net"):
    attempt("setns " + kind, lambda: libc.setns(os.open("/proc/1/ns/" + kind, os.O_RDONLY), 0))

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("inode", ctypes.c_ulonglong)]

attempt("open_by_handle_at", lambda: libc.open_by_handle_at(os.open("/", os.O_RDONLY), ctypes.byref(Handle(8, 1, 2)), 0))
attempt("syslog", lambda: libc.klogctl(3, ctypes.create_string_buffer(64), 64))
attempt("swapon", lambda: libc.swapon(b"/no-such-file", 0))
attempt("delete_module", lambda: libc.delete_module(b"no_such_module", 0))
for major, minor in ((1, 1), (1, 2), (7, 0), (8, 0), (253, 0), (254, 0), (259, 0)):
    for kind in (0o060000, 0o020000):
        def read_device():
            try:
                os.mknod("device", 0o600 | kind, os.makedev(major, minor))
                return len(open("device", "rb").read(1)) - 1
            finally:
                if os.path.lexists("device"):
                    os.unlink("device")
        attempt("device %d:%d" % (major, minor), read_device)
`;

/** Shared memory of System V: \`make\` or \`find\`, then a key. */
const SHARED_MEMORY = `
import ctypes, sys
libc = ctypes.CDLL(None)
print(libc.shmget(int(sys.argv[2]), 4096, 0o1666 if sys.argv[1] == "make" else 0) >= 0)
`;

const python = { program: "python3" } as const;

/** Limits of what processes of an isolating backend can see or do. */
export const isolationCases: readonly ConformanceCase[] = [
  {
    name: "files of the host are invisible to processes, wherever they lie",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      const canaries = await canariesEverywhere(context);
      const script = `
        command -v xargs > /dev/null || echo 'this case needs xargs'
        for directory; do
          cat "$directory/secret.txt"; ls -a "$directory"
          for way in /proc/[0-9]*/root /proc/[0-9]*/cwd /proc/[0-9]*/fd/* /proc/self/fd/*; do
            printf '%s\\0' "$way$directory/secret.txt" "$way/${"../".repeat(40)}$directory/secret.txt"
          done | xargs -0 cat
          echo overwritten > "$directory/secret.txt"
        done 2> /dev/null`;
      for (const user of [context.user.name, "root"]) {
        const args = canaries.map(({ directory }) => directory);
        const { stdout } = await context.shell(script, { args, user });
        assert.equal(stdout.toString(), "");
      }
      for (const canary of canaries) await canary.verify();
    },
  },
  {
    name: "every operation on files stays inside while links are swapped for five seconds",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      await attackByLinkSwaps(context, ATTACK_MS);
      assert.equal(await context.succeed("echo still here"), "still here\n");
    },
  },
  {
    name: "operations on files do not leave through the first process either",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      const canaries = await canariesEverywhere(context);
      const { files } = context.sandbox;
      for (const canary of canaries) {
        for (const way of [
          "/proc/1/root",
          "/proc/self/root",
          "/proc/1/cwd",
          "/proc/self/cwd",
          "/proc/self/fd/3",
        ]) {
          for (const path of [`${way}${canary.file}`, `${way}/${"../".repeat(40)}${canary.file}`]) {
            const found = await context.read(path).catch(() => Buffer.alloc(0));
            assert.ok(!found.includes(canary.secret), `read a file of the host by ${path}`);
            const info = await files.stat(path).catch(() => undefined);
            assert.notEqual(info?.modifiedAtMs, canary.modifiedAtMs, `told of a file of the host by ${path}`);
            await context.write(path, "overwritten").catch(() => undefined);
            await files.makeDir(`${path}/../made`).catch(() => undefined);
            await files.move(path, context.home("taken")).catch(() => undefined);
            await files.remove(path).catch(() => undefined);
          }
        }
        await canary.verify();
      }
    },
  },
  {
    name: "processes of other sandboxes and of the host are invisible",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      const marker = randomBytes(6).toString("hex");
      const other = await context.provision();
      const visible =
        'echo "$1" | cut -c 2- > needle; cat /proc/[0-9]*/cmdline 2> /dev/null | tr "\\0" "\\n" | grep -c "^$(cat needle)$"';
      const running = await context.start(`sleep 300; : ${marker}`, { in: other, args: [marker] });
      const args = [`-${marker}`];
      // The fork that becomes `sleep` may still have the shell's command line.
      assert.match((await context.shell(visible, { in: other, args })).stdout.toString(), /^[12]\n$/);
      for (const user of [context.user.name, "root"]) {
        const seen = await context.shell(visible, { args, user, cwd: context.user.home });
        assert.equal(seen.stdout.toString().trim(), "0");
        const { stdout } = await context.shell("cat /proc/[0-9]*/cmdline", { user });
        assert.ok(!stdout.includes(process.execPath), "the server's process is visible");
      }
      await running.kill("SIGKILL", "group");
    },
  },
  {
    name: "no process of a sandbox has anything of the server's environment",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      const name = "COPPICE_CONFORMANCE_SECRET";
      process.env[name] = randomBytes(8).toString("hex");
      try {
        const sandbox = await context.provision();
        const script = "cat /proc/[0-9]*/environ /proc/self/environ | tr '\\000' '\\n'";
        const { stdout } = await context.shell(script, { in: sandbox, user: "root" });
        const seen = new Set(stdout.toString().split("\n"));
        const own = new Set(Object.keys(context.environment(sandbox)));
        const foreign = Object.entries(process.env).filter(([key, value]) => seen.has(`${key}=${value}`));
        const leaked = foreign
          .map(([key]) => key)
          .filter((key) => !own.has(key) && !SHELL_VARIABLES.has(key));
        assert.deepEqual(leaked, [], "variables of the server are visible");
      } finally {
        delete process.env[name];
      }
    },
  },
  {
    name: "a process is started without descriptors of the server",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      for (const options of [{}, { input: "none" }, { user: "root" }] as const) {
        // The shell and `ls` open one each, in turn.
        const script = 'for each in /proc/self/fd/*; do echo "${each##*/}"; done; ls /proc/self/fd | wc -l';
        const started = await context.start(script, options);
        const { stdout } = await context.finish(started);
        const lines = stdout.toString().trim().split("\n");
        assert.ok(Number(lines.at(-1)) <= 4, `descriptors: ${lines.join(" ")}`);
      }
    },
  },
  {
    name: "sockets of other sandboxes and of the host are out of reach, abstract ones too",
    group: "isolation",
    needs: ["isolation", python],
    async run(context) {
      const name = `coppice-${randomBytes(6).toString("hex")}`;
      const other = await context.provision();
      const script =
        "import socket, sys, time; a = socket.socket(socket.AF_UNIX); sys.platform == 'linux' and (a.bind('\\0' + sys.argv[1]), a.listen()); s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], sys.platform, flush=True); time.sleep(300)";
      const reader = new OutputReader(
        await context.startProgram("python3", ["-c", script, name], { in: other }),
      );
      const [, port, system] = await reader.sees(/^(\d+) (\w+)(?=\n)/);
      // Abstract sockets are Linux's.
      const own = [...(system === "linux" ? [`@${name}`] : []), `127.0.0.1 ${port}`];
      await using host = await listenOnHost(name);
      const targets = [...own, `@${host.name}`, ...host.addresses];
      assert.deepEqual(await connect(context, other, own), own, "the other sandbox's own do not answer");
      assert.deepEqual(await connect(context, context.sandbox, targets), []);
      assert.equal(host.connections(), 0, "the sandbox reached a server of the host");
      const seen = await context.succeed("cat /proc/net/unix 2> /dev/null || true");
      assert.ok(!seen.includes(name), "the names of others' sockets are visible");
    },
  },
  {
    name: "shared memory is not shared between sandboxes",
    group: "isolation",
    needs: ["isolation", python],
    async run(context) {
      const key = String(randomBytes(3).readUIntBE(0, 3) + 1);
      const other = await context.provision();
      // FreeBSD's devfs has no such directory.
      const script = '[ ! -d /dev/shm ] || { echo x > "/dev/shm/$1"; ls "/dev/shm/$1"; }';
      await context.succeed(script, { in: other, args: [key] });
      const names = await context.succeed("ls /dev/shm 2> /dev/null || true");
      assert.ok(!names.includes(key), "a file in /dev/shm of another sandbox is visible");
      const shared = async (sandbox: Sandbox, what: string): Promise<string> => {
        const started = await context.startProgram("python3", ["-c", SHARED_MEMORY, what, key], {
          in: sandbox,
        });
        return (await context.finish(started)).stdout.toString().trim();
      };
      // A backend may also refuse it altogether.
      const isMade = await shared(other, "make");
      assert.equal(await shared(other, "find"), isMade);
      assert.equal(await shared(context.sandbox, "find"), "False");
    },
  },
  {
    name: "without internet access there is no way out, and no interface but loopback",
    group: "isolation",
    needs: ["isolation", python],
    async run(context) {
      const sandbox = await context.provision({ allowInternetAccess: false });
      const ask = ["-c", "import socket; print(*(name for _, name in socket.if_nameindex()))"];
      const interfaces = await context.finish(await context.startProgram("python3", ask, { in: sandbox }));
      for (const each of interfaces.stdout.toString().trim().split(/\s+/)) assert.match(each, /^lo\d*$/);
      for (const user of [context.user.name, "root"]) {
        const started = await context.startProgram("python3", ["-c", ROUTES], { in: sandbox, user });
        const { exit, stdout } = await context.finish(started);
        assert.deepEqual(exit, { code: 0 });
        assert.equal(stdout.toString(), "");
      }
      await using host = await listenOnHost("");
      assert.deepEqual(await connect(context, sandbox, host.addresses), []);
      assert.equal(host.connections(), 0, "the sandbox reached a server of the host");
    },
  },
  {
    name: "mounts, devices, other namespaces and the first process are denied, to root as well",
    group: "isolation",
    needs: ["isolation", python],
    async run(context) {
      await requireApart(context);
      for (const user of [context.user.name, "root"]) {
        const started = await context.startProgram("python3", ["-c", SYSTEM_CALLS], { user, cwd: "/tmp" });
        const { exit, stdout, stderr } = await context.finish(started);
        assert.deepEqual(exit, { code: 0 }, stderr.toString());
        assert.equal(stdout.toString(), "", `done as ${user}`);
      }
    },
  },
  {
    name: "files of the kernel can be neither read nor written, by root as well",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      await requireApart(context);
      const script = `
        for device in /dev/mem /dev/kmem /dev/kmsg /dev/port /dev/sd[a-z] /dev/vd[a-z] /dev/nvme0n1 /dev/loop0 \\
          /proc/kcore /proc/kmsg /proc/1/mem; do
          [ -n "$(head -c 1 "$device" | tr '\\000' 0)" ] && echo "read $device"
        done
        # What is written is what is there, or shows a help text: nobody is hurt where it is allowed.
        for setting in kernel/core_pattern kernel/panic vm/overcommit_memory kernel/modprobe; do
          value=$(cat "/proc/sys/$setting") && echo "$value" > "/proc/sys/$setting" && echo "wrote $setting"
        done
        echo h > /proc/sysrq-trigger && echo "wrote sysrq-trigger"
        readlink /proc/1/exe
        true`;
      for (const user of [context.user.name, "root"]) {
        const { stdout } = await context.shell(`{ ${script}\n} 2> /dev/null`, { user });
        assert.equal(stdout.toString(), "", `done as ${user}`);
      }
    },
  },
  {
    name: "a setuid file that root makes inside is out of reach for other users of the host",
    group: "isolation",
    needs: ["isolation", "stateDirectory"],
    async run(context) {
      const name = `setuid-${randomBytes(6).toString("hex")}`;
      await context.succeed('cp "$(command -v id)" "$1" && chmod 4755 "$1" && chmod 755 .', {
        user: "root",
        args: [name],
        cwd: context.user.home,
      });
      const { stateDirectory = "" } = context.subject;
      for (const path of await findFiles(stateDirectory, name)) {
        assert.ok(
          !(await isOpenToOthers(stateDirectory, path)),
          `${path} can be run by every user of the host`,
        );
      }
    },
  },
  {
    name: "the signals of a sandbox stay in it",
    group: "isolation",
    needs: ["isolation"],
    async run(context) {
      await requireApart(context);
      const other = await context.provision();
      const bystander = await context.start("echo up; exec sleep 300", { in: other });
      await bystander.output[Symbol.asyncIterator]().next();
      for (const user of [context.user.name, "root"]) {
        await context.shell('kill -9 "$1"; kill -9 "-$1"', { args: [String(bystander.pid)], user });
      }
      assert.ok(await context.isAlive(bystander.pid, other), "a process of another sandbox was killed");
      await bystander.kill("SIGKILL");
    },
  },
];

/** Variables that a shell sets by itself. */
const SHELL_VARIABLES: ReadonlySet<string> = new Set(["PWD", "OLDPWD", "SHLVL", "_", "SHELL"]);

/** One in each host directory that a sandbox may share. */
async function canariesEverywhere(context: ConformanceContext): Promise<readonly Canary[]> {
  const { stateDirectory } = context.subject;
  const parents = new Set([
    tmpdir(),
    homedir(),
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/run",
    "/home",
    "/opt",
    "/srv",
    process.cwd(),
    ...(stateDirectory === undefined ? [] : [dirname(stateDirectory)]),
  ]);
  const canaries: Canary[] = [];
  for (const parent of parents) {
    const canary = await context.canary(parent).catch(() => undefined);
    if (canary !== undefined) canaries.push(canary);
  }
  assert.ok(canaries.length > 0, "no directory of the host can be written to");
  return canaries;
}

async function connect(
  context: ConformanceContext,
  sandbox: Sandbox,
  targets: readonly string[],
): Promise<string[]> {
  const started = await context.startProgram("python3", ["-c", CONNECT, ...targets], { in: sandbox });
  const { exit, stdout } = await context.finish(started);
  assert.deepEqual(exit, { code: 0 });
  return stdout.toString().split("\n").slice(0, -1);
}

interface HostListener extends AsyncDisposable {
  /** Name of its abstract socket. */
  readonly name: string;
  /** `host port`, for each address of this host. */
  readonly addresses: readonly string[];
  connections(): number;
}

async function listenOnHost(name: string): Promise<HostListener> {
  let connections = 0;
  const open = async (
    path: { readonly port: number } | { readonly path: string },
  ): Promise<Server | undefined> => {
    const server = createServer((socket) => {
      connections++;
      socket.destroy();
    });
    return new Promise((resolve) => {
      server.once("error", () => resolve(undefined));
      server.listen(path, () => resolve(server));
    });
  };
  const hostName = `${name}-host`;
  const tcp = await open({ port: 0 });
  const abstract = process.platform === "linux" ? await open({ path: `\0${hostName}` }) : undefined;
  const address = tcp?.address();
  const port = typeof address === "object" ? (address?.port ?? 0) : 0;
  const hosts = Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map((each) => each.address));
  return {
    name: hostName,
    addresses: hosts.filter((host) => !host.startsWith("fe80:")).map((host) => `${host} ${port}`),
    connections: () => connections,
    async [Symbol.asyncDispose]() {
      for (const server of [tcp, abstract]) {
        if (server) await new Promise((resolve) => server.close(resolve));
      }
    },
  };
}

/** Files of a name below a directory, as this process sees them. */
async function findFiles(directory: string, name: string): Promise<string[]> {
  const entries = await readdir(directory, { withFileTypes: true }).catch(() => []);
  const found: string[] = [];
  for (const entry of entries) {
    const path = join(directory, entry.name);
    if (entry.name === name) found.push(path);
    else if (entry.isDirectory()) found.push(...(await findFiles(path, name)));
  }
  return found;
}

/** True when every account may go from a directory down to a file. Directories above are not the backend's. */
async function isOpenToOthers(directory: string, path: string): Promise<boolean> {
  let current = directory;
  for (const part of relative(directory, dirname(path)).split(sep)) {
    current = join(current, part);
    if (((await lstat(current)).mode & 0o001) === 0) return false;
  }
  return true;
}
