import { access, constants, readFile } from "node:fs/promises";
import { join } from "node:path";
import { type Examination, type Finding, messageOf } from "@coppice/core";
import type { Controller } from "./control-groups.js";
import type { LinuxNamespacesSettings } from "./linux-namespaces-config.js";
import type { Templates } from "./templates.js";

/** What the backend found when it was opened. */
export interface FoundOnHost {
  readonly controllers: ReadonlyMap<Controller, 1 | 2>;
  readonly keepsLayersInMemory: boolean;
  readonly templates: Templates;
}

const CODE_INTERPRETER = "code-interpreter-v1";
const EGRESS_PROGRAMS = { ip: "iproute2", nft: "nftables", nsenter: "util-linux" };
const LIMITS: readonly (readonly [Controller, string])[] = [
  ["memory", "memoryMiB is enforced"],
  ["cpu", "cpuCount is enforced"],
  ["pids", "processes is enforced"],
  ["freezer", "sandboxes can be paused"],
];
const DELEGATE =
  "hand it to this server (a systemd unit with Delegate=yes, a boot with cgroup_enable=memory): docs/linux.md";

/**
 * What `coppice doctor` says of this host beside whether it can run the backend at all.
 * @param found undefined where it cannot: then only what may be the cause is told.
 */
export async function diagnoseHost(
  settings: LinuxNamespacesSettings,
  found: FoundOnHost | undefined,
  { plugins }: Examination,
): Promise<readonly Finding[]> {
  if (found === undefined) return likelyCauses(settings);
  return [
    ...describeLimits(found),
    describeLayers(settings, found),
    describeEgress(settings),
    ...(plugins.has("jupyter") ? [await describePython(found.templates)] : []),
  ];
}

function describeLimits({ controllers, keepsLayersInMemory }: FoundOnHost): readonly Finding[] {
  const limits = LIMITS.map(([controller, promise]): Finding => {
    const version = controllers.get(controller);
    if (version !== undefined) {
      return { severity: "ok", message: `${promise}, by control groups of version ${version}` };
    }
    const message = `not so: ${promise}; there is no controller ${controller} that this server may use`;
    return { severity: "warn", message, fix: DELEGATE };
  });
  if (keepsLayersInMemory) {
    return [...limits, { severity: "ok", message: "diskMiB is enforced, by the size of the file system" }];
  }
  const disk: Finding = {
    severity: "warn",
    message: "diskMiB holds back what is written over the API, not what programs write",
    fix: "give linux-namespaces.directory a file system of its own, or set linux-namespaces.layers: memory",
  };
  return [...limits, disk];
}

function describeLayers(
  { directory, layers }: LinuxNamespacesSettings,
  { keepsLayersInMemory }: FoundOnHost,
): Finding {
  if (!keepsLayersInMemory) return { severity: "ok", message: `files of sandboxes are in ${directory}` };
  if (layers === "memory")
    return { severity: "ok", message: "files of sandboxes are in memory, as configured" };
  return {
    severity: "warn",
    message: `files of sandboxes are in memory: there is no overlay on the file system of ${directory}`,
    fix: "set linux-namespaces.directory to a place on ext4, xfs or tmpfs",
  };
}

function describeEgress({ egress }: LinuxNamespacesSettings): Finding {
  if (egress === "none") return { severity: "ok", message: "no sandbox reaches the internet (egress: none)" };
  return { severity: "ok", message: "sandboxes may reach the internet, by ip and nft" };
}

async function describePython(templates: Templates): Promise<Finding> {
  try {
    await templates.get(CODE_INTERPRETER);
    return { severity: "ok", message: `template ${CODE_INTERPRETER} has a Python with ipykernel` };
  } catch (error) {
    return { severity: "fail", message: messageOf(error) };
  }
}

async function likelyCauses({ egress }: LinuxNamespacesSettings): Promise<readonly Finding[]> {
  if (process.platform !== "linux") return [];
  const findings: Finding[] = [];
  const filesystems = await readFile("/proc/filesystems", "utf8").catch(() => "");
  if (!/\toverlay$/m.test(filesystems)) {
    const message = "the kernel has not loaded overlayfs, which the root of every sandbox is made of";
    findings.push({ severity: "warn", message, fix: "modprobe overlay" });
  }
  if (process.getuid?.() !== 0) findings.push(await describeUserNamespaces());
  if (egress === "none") return findings;
  for (const [program, packageName] of Object.entries(EGRESS_PROGRAMS)) {
    if (await isOnPath(program)) continue;
    const message = `egress: nat needs the program ${program}, which this host does not have`;
    findings.push({ severity: "warn", message, fix: `apt-get install ${packageName}` });
  }
  return findings;
}

async function describeUserNamespaces(): Promise<Finding> {
  const most = await readFile("/proc/sys/user/max_user_namespaces", "utf8").catch(() => "0");
  const restricted = await readFile("/proc/sys/kernel/unprivileged_userns_clone", "utf8").catch(() => "1");
  const state = Number(most) > 0 && restricted.trim() !== "0" ? "on" : "off";
  const message = `user namespaces are ${state} for this user, and would not be enough: it needs root`;
  return { severity: "warn", message, fix: "start the server as root" };
}

async function isOnPath(program: string): Promise<boolean> {
  for (const directory of (process.env["PATH"] ?? "").split(":")) {
    const path = join(directory === "" ? "." : directory, program);
    const isThere = await access(path, constants.X_OK).then(
      () => true,
      () => false,
    );
    if (isThere) return true;
  }
  return false;
}
