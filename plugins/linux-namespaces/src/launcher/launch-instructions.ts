import { randomUUID } from "node:crypto";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import type { VolumeId } from "@coppice/core/backend";
import type { GroupFile } from "./launcher.js";
import type { PreparedTemplate, SandboxFacts, SandboxPaths } from "./sandbox-record.js";
import type { UserNamespace } from "./user-namespace.js";

/** Names below `SandboxPaths.layers`: one for the root, one for each overlay of the template. */
export const ROOT_LAYER = "root";
export function overlayLayer(index: number): string {
  return `overlay${index}`;
}

export interface LaunchedSandbox {
  readonly paths: SandboxPaths;
  readonly template: PreparedTemplate;
  readonly facts: SandboxFacts;
  readonly group: {
    readonly paths: readonly string[];
    /** Control group of version 2 to start in; empty for none. */
    readonly unifiedPath: string;
    /** Files of the other groups that the first process writes itself into. */
    readonly joinFiles: readonly string[];
    readonly shownFiles: readonly string[] | undefined;
    limitFiles(limits: SandboxFacts["limits"]): readonly GroupFile[];
  };
  readonly volumes: readonly MountedVolume[];
  /** True for a restart, whose layers exist. Their contents are not trusted: nothing is written to them from here. */
  readonly hasLayers: boolean;
}

interface LaunchOptions {
  readonly agent: string;
  /** Resource limits of each process: `files`, `processes`, `data` in bytes. */
  readonly resourceLimits: Readonly<Record<string, number>>;
  /** True when setuid programs may gain privileges, as `sudo` does. */
  readonly allowsSudo: boolean;
  readonly users: UserNamespace | undefined;
  readonly nameservers: readonly string[];
}

export interface MountedVolume {
  readonly id: VolumeId;
  readonly source: string;
  readonly target: string;
  readonly readOnly: boolean;
  /** True where its size is held only by measuring it. */
  readonly isWatched: boolean;
}

// Enough for root inside to own files, change users and serve low ports, but no capability that reaches the kernel.
const CAPABILITIES = {
  CHOWN: 0,
  DAC_OVERRIDE: 1,
  FOWNER: 3,
  FSETID: 4,
  KILL: 5,
  SETGID: 6,
  SETUID: 7,
  NET_BIND_SERVICE: 10,
  SYS_CHROOT: 18,
  // sudo and PAM refuse to work without it.
  AUDIT_WRITE: 29,
} as const;

const DEVICES = [
  ["null", 1, 3],
  ["zero", 1, 5],
  ["full", 1, 7],
  ["random", 1, 8],
  ["urandom", 1, 9],
  ["tty", 5, 0],
] as const;
const DEVICE_LINKS = [
  ["fd", "/proc/self/fd"],
  ["stdin", "fd/0"],
  ["stdout", "fd/1"],
  ["stderr", "fd/2"],
  ["ptmx", "pts/ptmx"],
] as const;

const CPU = "sys/devices/system/cpu";

/** Group `tty`. */
const TERMINALS_GROUP = 5;

// Root inside lacks the capabilities that most of these check, but some check only for user id 0.
const READ_ONLY_PROC = ["sys", "sysrq-trigger", "irq", "bus", "fs", "mtrr"];
const HIDDEN_PROC = `
  kcore keys key-users latency_stats timer_list timer_stats sched_debug kallsyms kpagecount kpageflags
  kpagecgroup kmsg vmallocinfo slabinfo modules acpi scsi asound driver
`
  .trim()
  .split(/\s+/);

/** Instructions that turn a forked launcher into the first process of a sandbox. */
export function launchInstructions(sandbox: LaunchedSandbox, options: LaunchOptions): string[] {
  const { facts, hasLayers, paths, template } = sandbox;
  const { firstId, memoryLayersMiB, project } = facts;
  const { users } = options;
  const mapped = firstId === undefined ? "" : "m";
  const layers = template.overlays.map((overlay, index) => ({
    ...overlay,
    layer: join(paths.layers, overlayLayer(index)),
  }));
  return [
    ...instruction("program", options.agent),
    ...(hasLayers ? [] : [...directory(paths.mountPoint), ...directory(paths.layers)]),
    ...(memoryLayersMiB === undefined
      ? []
      : ["tmpfs", paths.layers, "", `mode=700,size=${memoryLayersMiB}m`]),
    ...(project === undefined
      ? []
      : ["project-quota", paths.layers, String(project), String(facts.limits.diskMiB)]),
    ...rootLayer(sandbox, options),
    ...layers.flatMap(({ layer }) => layerDirectories(layer, hasLayers)),
    // Files on disk have the ids that the sandbox sees; its host ids are stored nowhere.
    ...(firstId === undefined ? [] : ["owner"]),
    ...overlayOf(paths.mountPoint, template.lowers, join(paths.layers, ROOT_LAYER), users),
    ...instruction("root", paths.mountPoint),
    ...template.binds.flatMap(({ target, source }) => ["bind", target, source, `rd${mapped}`]),
    ...layers.flatMap(({ target, lowers, layer }) => overlayOf(target, lowers, layer, users)),
    ...devices(facts, users),
    ...instruction("null", "/dev/null"),
    ...processes(),
    ...shownLimits(sandbox),
    // Last, and before any process of the sandbox runs: the places can only be files and directories.
    ...sandbox.volumes.flatMap(({ target, source, readOnly }) =>
      instruction("volume", target, source, `${readOnly ? "r" : ""}sd${mapped}`),
    ),
    // Not before: blocks of directories that are made above stay in the cache when the directories are gone, and
    // whatever has such a page keeps its removed control group in the kernel, 140 KiB for each sandbox.
    ...sandbox.group.joinFiles.flatMap((file) => ["join", file]),
    "own-groups",
    "enter",
    ...instruction("hostname", facts.id),
    ...Object.entries({ ...options.resourceLimits, core: 0 }).flatMap(([name, value]) => [
      "resource-limit",
      name,
      String(value),
    ]),
    ...(firstId === undefined ? [] : ["users"]),
    "loopback",
    // With a single account there is no root for sudo to change to.
    ...(options.allowsSudo && users?.hasAccounts !== false ? [] : ["no-new-privileges"]),
    // Without no-new-privileges this needs a capability that the next instruction drops.
    "system-calls",
    ...capabilities(Object.values(CAPABILITIES)),
  ];
}

function rootLayer(
  { facts: { id: hostname }, hasLayers, paths }: LaunchedSandbox,
  { nameservers }: LaunchOptions,
): string[] {
  const layer = join(paths.layers, ROOT_LAYER);
  if (hasLayers) return layerDirectories(layer, hasLayers);
  const upper = join(layer, "upper");
  const hosts = `127.0.0.1\tlocalhost\n127.0.1.1\t${hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n`;
  const resolvers = nameservers.map((address) => `nameserver ${address}\n`).join("");
  return [
    ...layerDirectories(layer, hasLayers),
    // An image may lack what is mounted on, or have a link there, which this hides.
    ...["dev", "proc", "etc", "sys"].flatMap((name) => directory(join(upper, name))),
    ...instruction("file", join(upper, "etc/hostname"), "644", `${hostname}\n`),
    ...instruction("file", join(upper, "etc/hosts"), "644", hosts),
    ...instruction("file", join(upper, "etc/resolv.conf"), "644", resolvers),
    // Programs recognize E2B's sandboxes by this file.
    ...directory(join(upper, "run")),
    ...directory(join(upper, "run/e2b")),
    ...instruction("file", join(upper, "run/e2b/.E2B_SANDBOX"), "644", "true"),
  ];
}

function layerDirectories(layer: string, hasLayers: boolean): string[] {
  const work = directory(join(layer, "work"));
  return hasLayers ? work : [...directory(layer), ...directory(join(layer, "upper")), ...work];
}

/** Work directories of a sandbox's overlays. The kernel never mounts one again that was mounted as `volatile`. */
export function workDirectories(paths: SandboxPaths, overlays: number): readonly string[] {
  const layers = [ROOT_LAYER, ...Array.from({ length: overlays }, (_, index) => overlayLayer(index))];
  return layers.map((layer) => join(paths.layers, layer, "work"));
}

/** @param layer host directory with `upper` and `work`. */
export function overlayOf(
  target: string,
  lowers: readonly string[],
  layer: string,
  users: UserNamespace | undefined,
): string[] {
  // Without privileges on the host, overlayfs keeps its marks in user.* attributes.
  return ["overlay", target, lowers.join(":"), layer, users === undefined ? "" : ",userxattr"];
}

function devices({ firstId = 0, limits }: SandboxFacts, users: UserNamespace | undefined): string[] {
  const sharedMemoryMiB = Math.max(1, Math.floor(limits.memoryMiB / 2));
  const terminals = "newinstance,ptmxmode=0666,mode=0620";
  const group = users?.hasAccounts === false ? "" : `,gid=${firstId + TERMINALS_GROUP}`;
  return [
    ...instruction("tmpfs", "/dev", "sx", "mode=755,size=64k,nr_inodes=256"),
    ...DEVICES.flatMap(([name, major, minor]) => device(`/dev/${name}`, [major, minor], users)),
    ...DEVICE_LINKS.flatMap(([name, target]) => ["link", `/dev/${name}`, target]),
    ...directory("/dev/pts"),
    ...instruction("devpts", "/dev/pts", terminals + group),
    ...directory("/dev/shm"),
    ...instruction("tmpfs", "/dev/shm", "sd", `mode=1777,size=${sharedMemoryMiB}m`),
  ];
}

/** Where the files are made that are mounted elsewhere. */
const SHOWN = "/dev/shm";

/**
 * Files of `/proc` and `/sys` that show the sandbox's limits and use instead of the host's, and an id of the boot of its
 * own. The agent keeps those up to date that change: agent/native/shown.c, which expects them in this order.
 */
function shownLimits({ paths, facts, group }: LaunchedSandbox): string[] {
  const file = (name: string, text = ""): string[] => instruction("file", `${SHOWN}/${name}`, "444", text);
  const cover = (target: string, name: string): string[] =>
    instruction("cover", target, join(paths.mountPoint, SHOWN, name));
  const processors = Math.max(1, Math.min(Math.ceil(facts.limits.cpuCount), availableParallelism()));
  const directories = ["sys", "sys/devices", "sys/devices/system", CPU];
  const names = Array.from({ length: processors }, (_, index) => `${CPU}/cpu${index}`);
  return [
    ...instruction("tmpfs", SHOWN, "sdx", "mode=755,size=2m"),
    ...file("boot_id", `${randomUUID()}\n`),
    ...cover("/proc/sys/kernel/random/boot_id", "boot_id"),
    ...(group.shownFiles === undefined
      ? []
      : [
          ...[...directories, ...names].flatMap((name) => directory(`${SHOWN}/${name}`)),
          ...["meminfo", "cpuinfo", "stat", `${CPU}/online`].flatMap((name) => file(name)),
          ...["possible", "present"].flatMap((name) => ["link", `${SHOWN}/${CPU}/${name}`, "online"]),
          ...file("swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"),
          ...[...group.shownFiles, "/proc/cpuinfo", "/proc/stat"].flatMap((path) =>
            instruction("keep", path, "r"),
          ),
          ...["meminfo", "cpuinfo", "stat", `${CPU}/online`].flatMap((name) =>
            instruction("keep", `${SHOWN}/${name}`, "w"),
          ),
          ...["meminfo", "cpuinfo", "stat", "swaps"].flatMap((name) => cover(`/proc/${name}`, name)),
          ...cover("/sys", "sys"),
        ]),
    ...instruction("detach", SHOWN),
  ];
}

/** Mounts a `/proc` that shows and changes nothing of the host. */
export function processes(): string[] {
  return [
    ...instruction("proc", "/proc"),
    ...READ_ONLY_PROC.flatMap((name) => ["read-only", `/proc/${name}`]),
    ...HIDDEN_PROC.flatMap((name) => ["hide", `/proc/${name}`]),
  ];
}

/** Limits this process and its successors to some capabilities, by their numbers. */
export function capabilities(numbers: readonly number[]): string[] {
  return instruction("capabilities", numbers.reduce((mask, number) => mask + 2 ** number, 0).toString(16));
}

/** Only root of the host can create devices; others bind those of the host. */
export function device(
  path: string,
  [major, minor]: readonly [number, number],
  users: UserNamespace | undefined,
): string[] {
  if (users === undefined) return instruction("device", path, String(major), String(minor));
  return [...instruction("file", path, "666", ""), ...instruction("bind", path, path, "sx")];
}

export function directory(path: string): string[] {
  return instruction("directory", path, "755");
}

export function instruction(name: string, ...parameters: readonly string[]): string[] {
  return [name, ...parameters];
}
