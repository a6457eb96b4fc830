import { join } from "node:path";
import type { PreparedTemplate } from "./prepared-template.js";
import type { UserNamespace } from "./user-namespace.js";

/** Files of a sandbox on the host, below one directory that only the server's user can enter. */
export interface SandboxPaths {
  readonly directory: string;
  readonly record: string;
  readonly init: string;
  readonly socket: string;
  /** Where its root is mounted, in its own namespace only. */
  readonly mountPoint: string;
  /** Its changes of the template. */
  readonly layers: string;
}

/** Names of what lies below `SandboxPaths.layers`: one for the root, and one for each overlay of the template. */
export const ROOT_LAYER = "root";
export function overlayLayer(index: number): string {
  return `overlay${index}`;
}

export function sandboxPaths(directory: string): SandboxPaths {
  return {
    directory,
    record: join(directory, "sandbox.json"),
    init: join(directory, "init"),
    socket: join(directory, "agent.sock"),
    mountPoint: join(directory, "root"),
    layers: join(directory, "layers"),
  };
}

export interface LaunchOptions {
  readonly paths: SandboxPaths;
  readonly hostname: string;
  readonly template: PreparedTemplate;
  /** Files of control groups that take the first process in. */
  readonly joinFiles: readonly string[];
  /** Host path of the agent's binary. */
  readonly agent: string;
  /** Resource limits of each process: `files`, `processes`, `data` in bytes. */
  readonly resourceLimits: Readonly<Record<string, number>>;
  readonly sharedMemoryMiB: number;
  /** Programs with the setuid bit may raise what their user can do: `sudo` works. */
  readonly allowsSudo: boolean;
  /** Size of a memory file system for the layers, where they cannot lie on the disk. */
  readonly memoryLayersMiB: number | undefined;
  /** The project that its files are part of, and how much that may be. */
  readonly project: { readonly number: number; readonly limitMiB: number } | undefined;
  /** Undefined where the server is root. */
  readonly users: UserNamespace | undefined;
  /** Id of its root on the host, where the server is root and gives each sandbox separate ids. */
  readonly firstId: number | undefined;
  readonly nameservers: readonly string[];
  readonly volumes: readonly MountedVolume[];
  /** It began before, and its layers are there: what is in them may be anything, and nothing is written to them from here. */
  readonly hasLayers: boolean;
}

/** A volume as a sandbox gets it. */
export interface MountedVolume {
  /** Host path of what is in it. */
  readonly source: string;
  /** Path inside. */
  readonly target: string;
  readonly readOnly: boolean;
}

// Enough for root inside to own files, change users and serve low ports; nothing that reaches the kernel.
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
  // Without it sudo and PAM refuse to work.
  AUDIT_WRITE: 29,
} as const;
const CAPABILITY_MASK = Object.values<number>(CAPABILITIES).reduce((mask, number) => mask | (1 << number), 0);

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

/** Group of terminals: `tty`. */
const TERMINALS_GROUP = 5;

// Root inside has no capability that these would ask for, but some ask for nothing but the user id 0.
const READ_ONLY_PROC = ["sys", "sysrq-trigger", "irq", "bus", "fs", "mtrr"];
const HIDDEN_PROC = [
  "kcore",
  "keys",
  "key-users",
  "latency_stats",
  "timer_list",
  "timer_stats",
  "sched_debug",
  "kallsyms",
  "kpagecount",
  "kpageflags",
  "kpagecgroup",
  "kmsg",
  "vmallocinfo",
  "slabinfo",
  "modules",
  "acpi",
  "scsi",
  "asound",
  "driver",
];

/** The words that make the first process of a sandbox out of a forked launcher. */
export function launchInstructions(options: LaunchOptions): string[] {
  const { firstId, hasLayers, paths, template, memoryLayersMiB, project, resourceLimits, users } = options;
  const mapped = firstId === undefined ? "" : "m";
  const layers = template.overlays.map((overlay, index) => ({
    ...overlay,
    layer: join(paths.layers, overlayLayer(index)),
  }));
  return [
    ...instruction("program", options.agent),
    // Before anything is used that could be accounted.
    ...options.joinFiles.flatMap((file) => ["join", file]),
    "own-groups",
    ...(hasLayers ? [] : [...directory(paths.mountPoint), ...directory(paths.layers)]),
    ...(memoryLayersMiB === undefined
      ? []
      : ["tmpfs", paths.layers, "", `mode=700,size=${memoryLayersMiB}m`]),
    ...(project === undefined
      ? []
      : ["project-quota", paths.layers, String(project.number), String(project.limitMiB)]),
    ...rootLayer(options),
    ...layers.flatMap(({ layer }) => layerDirectories(layer, hasLayers)),
    // On the disk ids are as the sandbox sees them: which ones it has on the host shows nowhere.
    ...(firstId === undefined ? [] : ["owner"]),
    ...overlayOf(paths.mountPoint, template.lowers, join(paths.layers, ROOT_LAYER), users),
    ...instruction("root", paths.mountPoint),
    ...template.binds.flatMap(({ target, source }) => ["bind", target, source, `rd${mapped}`]),
    ...layers.flatMap(({ target, lowers, layer }) => overlayOf(target, lowers, layer, users)),
    ...devices(options),
    ...instruction("null", "/dev/null"),
    ...instruction("proc", "/proc"),
    ...READ_ONLY_PROC.flatMap((name) => ["read-only", `/proc/${name}`]),
    ...HIDDEN_PROC.flatMap((name) => ["hide", `/proc/${name}`]),
    // Last, and before anything of the sandbox runs: what lies under them can be nothing but files.
    ...options.volumes.flatMap(({ target, source, readOnly }) =>
      instruction("volume", target, source, `${readOnly ? "r" : ""}sd${mapped}`),
    ),
    "enter",
    ...instruction("hostname", options.hostname),
    ...Object.entries({ ...resourceLimits, core: 0 }).flatMap(([name, value]) => [
      "resource-limit",
      name,
      String(value),
    ]),
    ...(firstId === undefined ? [] : ["users"]),
    "loopback",
    // A sandbox with a single account has no root that sudo could change to.
    ...(options.allowsSudo && users?.hasAccounts !== false ? [] : ["no-new-privileges"]),
    // Without no-new-privileges this takes a capability that the next one gives up.
    "system-calls",
    ...instruction("capabilities", CAPABILITY_MASK.toString(16)),
  ];
}

function rootLayer(options: LaunchOptions): string[] {
  const { hasLayers, hostname, nameservers, paths } = options;
  const layer = join(paths.layers, ROOT_LAYER);
  const { upper } = layerPaths(layer);
  if (hasLayers) return layerDirectories(layer, hasLayers);
  return [
    ...layerDirectories(layer, hasLayers),
    ...directory(join(upper, "etc")),
    ...instruction("file", join(upper, "etc/hostname"), "644", `${hostname}\n`),
    ...instruction("file", join(upper, "etc/hosts"), "644", hostsFile(hostname)),
    ...instruction("file", join(upper, "etc/resolv.conf"), "644", resolverFile(nameservers)),
    // By this file programs know E2B's sandboxes.
    ...directory(join(upper, "run")),
    ...directory(join(upper, "run/e2b")),
    ...instruction("file", join(upper, "run/e2b/.E2B_SANDBOX"), "644", "true"),
  ];
}

function hostsFile(hostname: string): string {
  return `127.0.0.1\tlocalhost\n127.0.1.1\t${hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n`;
}

function resolverFile(nameservers: readonly string[]): string {
  return nameservers.map((address) => `nameserver ${address}\n`).join("");
}

function layerPaths(layer: string): { readonly upper: string; readonly work: string } {
  return { upper: join(layer, "upper"), work: join(layer, "work") };
}

function layerDirectories(layer: string, hasLayers: boolean): string[] {
  const { upper, work } = layerPaths(layer);
  if (hasLayers) return directory(work);
  return [...directory(layer), ...directory(upper), ...directory(work)];
}

/**
 * Where the kernel keeps the notes of overlays that a sandbox has: one that was mounted as `volatile` is never mounted
 * with the same ones again.
 */
export function workDirectories(paths: SandboxPaths, overlays: number): readonly string[] {
  const layers = [ROOT_LAYER, ...Array.from({ length: overlays }, (_, index) => overlayLayer(index))];
  return layers.map((layer) => layerPaths(join(paths.layers, layer)).work);
}

function overlayOf(
  target: string,
  lowers: readonly string[],
  layer: string,
  users: UserNamespace | undefined,
): string[] {
  // Without privileges on the host its notes are in attributes that users may set, too.
  return ["overlay", target, lowers.join(":"), layer, users === undefined ? "" : ",userxattr"];
}

function devices({ firstId = 0, sharedMemoryMiB, users }: LaunchOptions): string[] {
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

/** Only root of the host makes devices; others have the host's own. */
function device(
  path: string,
  [major, minor]: readonly [number, number],
  users: UserNamespace | undefined,
): string[] {
  if (users === undefined) return instruction("device", path, String(major), String(minor));
  return [...instruction("file", path, "666", ""), ...instruction("bind", path, path, "sx")];
}

function directory(path: string): string[] {
  return instruction("directory", path, "755");
}

/** Its name, which `native/instructions.h` explains, and what it takes. */
function instruction(name: string, ...parameters: readonly string[]): string[] {
  return [name, ...parameters];
}
