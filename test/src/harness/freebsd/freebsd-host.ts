import { createHash } from "node:crypto";
import { execFile, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import {
  chmod,
  copyFile,
  mkdir,
  mkdtemp,
  readFile,
  readdir,
  rename,
  rm,
  rmdir,
  symlink,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { type AgentConnection, agentBinary, startHostAgent } from "@coppice/agent";
import type { Logger } from "@coppice/core";
import type { AddressLeases, Limits } from "@coppice/core/backend";
import { MemoryLeases } from "@coppice/core/testing";
import { JailBackend, jailFreebsdConfig, type JailSettings } from "@coppice/plugin-jail-freebsd";
import { PYTHON } from "../host/python.js";

const run = promisify(execFile);

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
/** Sources of the programs that replace those of FreeBSD in tests on Linux. */
export const FREEBSD_SOURCES = join(ROOT, "test", "freebsd");
const SYSTEM_CALLS = join(ROOT, "plugins", "linux-namespaces", "native");
const CACHE = join(ROOT, ".toolchain", "freebsd");
const PROGRAMS = ["jail", "jexec", "jls"];
const SCRIPTS = [
  "arp",
  "devfs",
  "ifconfig",
  "mount",
  "pkg",
  "pkill",
  "ps",
  "rctl",
  "route",
  "sysctl",
  "umount",
  "zfs",
];
const FLAGS = ["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror"];
const POOL = "coppice";
/** Programs that are at other paths on FreeBSD. */
const HOST_PROGRAMS = {
  chown: "/usr/bin/chown",
  mkdir: "/usr/bin/mkdir",
  realpath: "/usr/bin/realpath",
  tar: "/usr/bin/bsdtar",
  umoci: "/usr/bin/umoci",
};
/** The stand-in for the internet of a connected host. */
export const OUTSIDE = { addresses: ["203.0.113.2", "203.0.113.3"], port: 8_099 } as const;
/** Prints interfaces, routes, and the states of the stand-in for pf. */
const NETWORK =
  "ip -oneline link show; ip -oneline route show; nft list set inet pf states 2> /dev/null; nft list set inet pf stack_states 2> /dev/null || true";
const silent = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
} as unknown as Logger;
const ENVIRONMENT = { PATH: "/usr/sbin:/usr/bin:/sbin:/bin" };

/**
 * Reason why there is no stand-in for a FreeBSD host here; undefined when there is one. Where the runner of the tests
 * found nothing of FreeBSD's changed, only the main case has one.
 * @throws Error for what is missing in CI.
 */
export function reasonWithoutFreebsdHost({ isMainCase = false } = {}): string | undefined {
  if (process.env["COPPICE_TEST_VARIANTS"] === "main" && !isMainCase)
    return "nothing that it is about has changed since it passed";
  const missing = whatIsMissing();
  if (missing === undefined || process.env["CI"] !== "true") return missing;
  throw new Error(`in CI the suites of jail-freebsd have to run: ${missing}`);
}

function whatIsMissing(): string | undefined {
  if (process.platform !== "linux") return "the stand-ins for FreeBSD need Linux";
  if (process.getuid?.() !== 0) return "the stand-ins for FreeBSD need root";
  if (!existsSync("/dev/fuse")) return "zfs-fuse needs /dev/fuse";
  if (agentBinary() === undefined) return "the agent has not been built: there is no C compiler";
  if (spawnSync("sh", ["-c", "command -v zfs-fuse"], { env: ENVIRONMENT }).status === 0) return undefined;
  return "the program zfs-fuse is missing (apt: zfs-fuse)";
}

/** A stand-in for a FreeBSD host: real ZFS, and replacements of its programs for jails. */
export interface FreebsdHost extends AsyncDisposable {
  readonly directory: string;
  /** Settings of the backend for this host, as in a server's configuration. */
  readonly configuration: Readonly<Record<string, unknown>>;
  /** The same, parsed. */
  readonly settings: JailSettings;
  /** Address leases of what `backend` makes, as in a server's ledger. */
  readonly leases: MemoryLeases;
  /** Limits that the stand-in for rctl(8) can enforce with the control groups of this host. */
  readonly limits: readonly (keyof Limits)[];
  /** A backend without a log, with other settings where given. Each call stands for the next server. */
  backend(
    settings?: Partial<JailSettings>,
    surroundings?: { readonly leases?: AddressLeases; readonly log?: Logger },
  ): JailBackend;
  /**
   * Runs a program on the host.
   * @returns stdout.
   * @throws Error with stderr unless it ends with 0.
   */
  run(path: string, ...args: readonly string[]): Promise<string>;
  /** Simulates a reboot: only datasets and files stay. No backend may be open. */
  reboot(): Promise<void>;
  /** Descriptions of remains of sandboxes. */
  leaks(): Promise<readonly string[]>;
}

export interface FreebsdHostOptions {
  /** Connects its sandboxes to a stand-in for the internet, `OUTSIDE`. False when absent. */
  readonly isConnected?: boolean;
  /** Release whose pfctl(8) the host has; 15 when absent. */
  readonly release?: 14 | 15;
  /** Where the templates have their programs, which are the host's: as here, or as FreeBSD's base. `linux` when absent. */
  readonly userland?: "linux" | "freebsd";
}

/**
 * Makes a host in separate namespaces, with its own ZFS daemon and pool. Any number can exist at a time. All
 * processes in one end with it.
 */
export async function openFreebsdHost({
  isConnected = false,
  release = 15,
  userland = "linux",
}: FreebsdHostOptions = {}): Promise<FreebsdHost> {
  const agent = agentBinary() ?? "";
  const directory = await mkdtemp(join(tmpdir(), "cf-"));
  const bin = join(directory, "bin");
  await linkPrograms(await compilePrograms(), bin);
  const world = await makeScript(
    join(directory, "world.sh"),
    `echo $$ > ${directory}/pid
exec /usr/bin/unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private -- ${agent} "$@"`,
  );
  const enter = await makeScript(
    join(directory, "agent.sh"),
    `[ -e /var/run/zfs/inside ] && exec ${agent} "$@"
[ -e ${AGENT_INSIDE}/coppice-agent ] && exec ${AGENT_INSIDE}/coppice-agent "$@"
pid=/proc/$(cat ${directory}/pid)/ns
exec /usr/bin/nsenter --mount=$pid/mnt --net=$pid/net --pid=$pid/pid_for_children -- ${agent} "$@"`,
  );
  const real = join(directory, "d", "programs", "real");
  await mkdir(real, { recursive: true, mode: 0o700 });
  await copyFile(agent, join(real, "coppice-agent"));
  const python = await describePython();
  const host = await startHostAgent({ binary: world });
  const runInside = (path: string, ...args: readonly string[]) => runIn(host, path, args);
  try {
    await runInside(join(FREEBSD_SOURCES, "set-up-host.sh"), directory, POOL);
    await writeFile(join(directory, "state", "pfctl-release"), String(release));
    if (isConnected) await runInside(join(FREEBSD_SOURCES, "set-up-network.sh"), String(OUTSIDE.port));
    const { version, base } = python;
    await runInside(
      join(FREEBSD_SOURCES, "make-template.sh"),
      `${POOL}/jails/_template`,
      version,
      base,
      userland,
    );
  } catch (error) {
    await host.close();
    await rm(directory, { recursive: true });
    throw error;
  }
  const mounts = [
    { source: "/usr", target: userland === "linux" ? "/usr" : "/compat/usr" },
    ...python.mounts,
  ];
  const template = { snapshot: `${POOL}/jails/_template@base`, mounts };
  const configuration = {
    dataset: `${POOL}/jails`,
    directory: join(directory, "d"),
    agent: enter,
    procfs: true,
    network: { kind: isConnected ? "vnet" : "none" },
    unpackerLibraries: ["/lib", "/lib64"],
    templates: { "base": template, "code-interpreter-v1": template },
    programs: {
      ...Object.fromEntries(
        [...PROGRAMS, ...SCRIPTS, "daemon", "pfctl"].map((name) => [name, join(bin, name)]),
      ),
      ...HOST_PROGRAMS,
    },
  };
  const settings = jailFreebsdConfig.parse(configuration);
  const groups = (await readFile(join(directory, "state", "control-groups"), "utf8"))
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.split(" ") as [controller: string, path: string]);
  const leases = new MemoryLeases();
  return {
    directory,
    configuration,
    settings,
    leases,
    backend: (changed = {}, surroundings = {}) =>
      new JailBackend({ settings: { ...settings, ...changed }, leases, log: silent, ...surroundings }),
    reboot: async () => {
      await runInside(join(FREEBSD_SOURCES, "reboot.sh"), directory);
    },
    limits: groups.flatMap(([controller]) => LIMIT_OF_CONTROLLER[controller] ?? []),
    run: runInside,
    leaks: async () => {
      const datasets = await runInside(join(bin, "zfs"), "list", "-H", "-o", "name", "-r", POOL);
      const jails = await runInside(join(bin, "jls"), "name");
      const rules = await runInside(join(bin, "rctl"));
      const mounted = await runInside(join(bin, "mount"), "-p");
      const network = await runInside("/bin/sh", "-c", NETWORK);
      const anchors = await readdir(join(directory, "state", "pf")).catch(() => []);
      const doubles = await readFile(join(directory, "state/net/doubles"), "utf8").catch(() => "");
      const files = await readdir(join(directory, "d"), { recursive: true });
      const processes = await runInside("/usr/bin/ps", "-e", "-o", "args=");
      return [
        ...lines(datasets)
          .filter((name) => /\/(e2b|volume|image|doctor)-/.test(name))
          .map((name) => `dataset ${name}`),
        ...lines(jails).map((name) => `jail ${name}`),
        ...lines(rules).map((rule) => `rule ${rule}`),
        ...lines(mounted)
          .filter((line) => /\/(e2b|image)-/.test(line))
          .map((line) => `mount ${line}`),
        ...lines(network).filter((line) => /epair|10\.78\.\d+\.\d+ \./.test(line)),
        ...anchors
          .filter((name) => !["lock", "labels", "held"].includes(name))
          .map((name) => `anchor ${name}`),
        ...lines(doubles).map((name) => `second interface ${name}`),
        ...leases.list().map(({ address, holder }) => `lease ${address} of ${holder}`),
        ...lines(processes)
          .filter((line) => /coppice-agent .*e2b-/.test(line))
          .map((line) => `process ${line}`),
        ...files
          .filter((name) => /e2b-|volume-|image-|(sockets|helpers)\//.test(name))
          .map((name) => `file ${name}`),
      ];
    },
    async [Symbol.asyncDispose]() {
      await host.close();
      for (const path of new Set(groups.map(([, parent]) => parent))) await removeGroups(path);
      await rm(directory, { recursive: true });
    },
  };
}

/**
 * Directory in jails of the program for which the configured agent, a script that enters the host's namespaces, stands.
 */
export const AGENT_INSIDE = "/.coppice/real";

/** Path inside of the interpreter with ipykernel, wherever the host has it. */
export const PYTHON_INSIDE = "/opt/python/bin/python3";

/** Directories of an interpreter on the host, and their places inside. */
interface HostPython {
  readonly version: string;
  readonly packages: string;
  /** Inside. */
  readonly base: string;
  readonly mounts: readonly { readonly source: string; readonly target: string }[];
}

const PYTHON_QUESTION = `
import json, os, sys, sysconfig
paths = {"basePrefix": sys.base_prefix, "packages": sysconfig.get_path("purelib")}
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], **{name: os.path.realpath(path) for name, path in paths.items()}}))`;

async function describePython(): Promise<HostPython> {
  const { stdout } = await run(PYTHON, ["-I", "-c", PYTHON_QUESTION]);
  const { version, basePrefix, packages } = JSON.parse(stdout) as Record<string, string>;
  if (version === undefined || basePrefix === undefined || packages === undefined) throw new Error(stdout);
  const isInSystem = basePrefix === "/usr" || basePrefix.startsWith("/usr/");
  const base = isInSystem ? basePrefix : "/opt/python-base";
  return {
    version,
    packages,
    base,
    mounts: [
      ...(isInSystem ? [] : [{ source: basePrefix, target: base }]),
      { source: packages, target: `/opt/python/lib/python${version}/site-packages` },
    ],
  };
}

const LIMIT_OF_CONTROLLER: Readonly<Record<string, keyof Limits>> = {
  memory: "memoryMiB",
  cpu: "cpuCount",
  pids: "processes",
};
const REMOVE_ATTEMPTS = 100;
const REMOVE_PAUSE_MS = 20;

/** The processes were killed, but end a moment later. */
async function removeGroups(path: string): Promise<void> {
  const groups = (await readdir(path, { withFileTypes: true })).filter((entry) => entry.isDirectory());
  for (const directory of [...groups.map(({ name }) => join(path, name)), path]) {
    for (let attempt = 1; ; attempt++) {
      const error = await rmdir(directory).catch((failure: NodeJS.ErrnoException) => failure);
      if (error === undefined) break;
      if (error.code !== "EBUSY" || attempt === REMOVE_ATTEMPTS) throw error;
      await sleep(REMOVE_PAUSE_MS);
    }
  }
}

function lines(output: string): string[] {
  return output.split("\n").filter((line) => line !== "");
}

async function runIn(host: AgentConnection, path: string, args: readonly string[]): Promise<string> {
  const started = await host.spawn({ path, args, env: ENVIRONMENT, cwd: "/", input: "none" });
  const output = { stdout: "", stderr: "" };
  for await (const { stream, data } of started.output) {
    output[stream === "stderr" ? "stderr" : "stdout"] += Buffer.from(data).toString();
  }
  const { code } = await started.exit;
  if (code !== 0) throw new Error(`${path} ${args.join(" ")} ended with ${code}: ${output.stderr}`);
  return output.stdout;
}

async function makeScript(path: string, script: string): Promise<string> {
  await writeFile(path, `#!/bin/sh\n${script}\n`);
  await chmod(path, 0o755);
  return path;
}

async function linkPrograms(compiled: string, bin: string): Promise<void> {
  await mkdir(bin);
  for (const name of PROGRAMS) await symlink(join(compiled, name), join(bin, name));
  for (const name of SCRIPTS) await symlink(join(FREEBSD_SOURCES, `${name}.sh`), join(bin, name));
  for (const name of ["daemon", "pfctl"]) await symlink(join(FREEBSD_SOURCES, `${name}.py`), join(bin, name));
  await symlink(join(FREEBSD_SOURCES, "return-links.sh"), join(bin, "return-links"));
}

/**
 * Compiles the programs unless that was done before.
 * @returns their directory
 */
async function compilePrograms(): Promise<string> {
  const digest = createHash("sha256");
  for (const name of (await readdir(FREEBSD_SOURCES)).toSorted())
    digest.update(await readFile(join(FREEBSD_SOURCES, name)));
  const directory = join(CACHE, digest.digest("hex").slice(0, 16));
  if (existsSync(directory)) return directory;
  await mkdir(dirname(directory), { recursive: true });
  const making = await mkdtemp(`${directory}-`);
  for (const name of PROGRAMS) {
    const files = [`${name}.c`, "jail-table.c", "jail-signals.c"];
    const sources = files.map((file) => join(FREEBSD_SOURCES, file));
    const shared = join(SYSTEM_CALLS, "system-calls.c");
    await run("cc", [...FLAGS, "-o", join(making, name), ...sources, shared]);
  }
  await rename(making, directory).catch(async (error: NodeJS.ErrnoException) => {
    // Another process has compiled them meanwhile.
    await rm(making, { recursive: true });
    if (error.code !== "ENOTEMPTY") throw error;
  });
  return directory;
}
