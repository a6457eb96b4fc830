import { constants, readFile } from "node:fs/promises";
import { release } from "node:os";
import { isAbsolute, join } from "node:path";
import { type Examination, type Finding, messageOf } from "@coppice/core";
import type { Egress } from "./network/egress.js";
import type { EnforcedLimit } from "./limits/enforced-limits.js";
import type { Launcher } from "./launcher/launcher.js";
import type { LinuxNamespacesSettings } from "./linux-namespaces-config.js";
import type { Templates } from "./templates/templates.js";
import { canAccess, findHostProgram } from "./launcher/host-programs.js";
import { UNPACKER } from "./storage/unpack-layers.js";
import { findUplinkProgram } from "./network/uplink.js";
import type { Opened } from "./open-host.js";

/** Parts of the opened backend that are told of. */
export interface FoundOnHost extends Pick<Opened, "limits" | "keepsLayersInMemory" | "users" | "idsMissing"> {
  readonly egress: Pick<Egress, "description"> | undefined;
  readonly launcher: Pick<Launcher, "run">;
  readonly templates: Pick<Templates, "get">;
}

/** Sources of facts about the host, which tests replace. */
interface Host {
  readonly root: string;
  readonly release: string;
}

const THIS_HOST: Host = { root: "/", release: release() };
const CODE_INTERPRETER = "code-interpreter-v1";
const APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
const INOTIFY_INSTANCES = "proc/sys/fs/inotify/max_user_instances";
const ENOUGH_INSTANCES = 8_192;
const EGRESS_PROGRAMS = { ip: "iproute2", nft: "nftables", nsenter: "util-linux" };
const DELEGATE =
  "hand its controllers to this server (a systemd unit with Delegate=yes, a boot with cgroup_enable=memory): docs/linux.md";
const BETTER_DISK =
  "give linux-namespaces.directory a file system with project quotas, or set linux-namespaces.layers: memory";

/**
 * Findings of `coppice doctor` about this host, beside the backend's own check.
 * @param found undefined when the backend cannot open: then only possible causes are reported.
 */
export async function diagnoseHost(
  settings: LinuxNamespacesSettings,
  found: FoundOnHost | undefined,
  { plugins }: Pick<Examination, "plugins">,
  host = THIS_HOST,
): Promise<readonly Finding[]> {
  if (found === undefined) return likelyCauses(settings);
  // A plain name is resolved inside the sandbox, to the host's /usr.
  const node = settings.node !== undefined && isAbsolute(settings.node) ? settings.node : undefined;
  const isOfHost = (template: string): boolean => settings.templates[template]?.kind !== "directory";
  return [
    ...found.limits.map(describeLimit),
    describeUsers(found),
    describeLayers(settings, found),
    ...(await describeEgress(settings, found)),
    ...(await describeInotify(host)),
    ...(settings.sudo && isOfHost("base") && found.users?.hasAccounts !== false
      ? await describeSudo(host)
      : []),
    ...(plugins.has("templates") ? [await describeUnpacker(found, host)] : []),
    ...(await describeTemplates(found.templates, [
      ...(plugins.has("jupyter") ? [CODE_INTERPRETER] : []),
      ...Object.keys(settings.templates),
    ])),
    ...(plugins.has("jupyter") && isOfHost(CODE_INTERPRETER)
      ? await describeNode(found, node ?? join(host.root, "usr/bin/node"))
      : []),
  ];
}

function ok(message: string): Finding {
  return { severity: "ok", message };
}

function warning(message: string, fix: string): Finding {
  return { severity: "warn", message, fix };
}

function describeLimit({ name, reach, how }: EnforcedLimit): Finding {
  const message = `${name}: ${how}`;
  return reach === "whole" ? ok(message) : warning(message, name === "diskMiB" ? BETTER_DISK : DELEGATE);
}

function describeUsers({ users, idsMissing }: FoundOnHost): Finding {
  if (users === undefined && idsMissing !== undefined) {
    return warning(
      `users of sandboxes share ids, and limits per user, with users of the host: ${idsMissing}`,
      "use Linux 5.19 or later, with linux-namespaces.directory and /usr on a file system with id-mapped mounts: docs/linux.md",
    );
  }
  if (users === undefined) return ok("sandboxes have separate user ids on this host");
  if (users.hasAccounts)
    return ok("sandboxes have separate users and groups, in user namespaces of this user");
  return warning(
    `sandboxes have one account, and no root or sudo: ${users.reason}`,
    "apt-get install uidmap, and give this user ranges in /etc/subuid and /etc/subgid: usermod --add-subuids",
  );
}

function describeLayers(
  { directory, layers }: LinuxNamespacesSettings,
  { keepsLayersInMemory }: FoundOnHost,
): Finding {
  if (!keepsLayersInMemory) return ok(`sandboxes store files in ${directory}`);
  if (layers === "memory") return ok("sandboxes store files in memory, as configured");
  return warning(
    `sandboxes store files in memory: the file system of ${directory} does not support overlays`,
    "set linux-namespaces.directory to a place on ext4, xfs or tmpfs",
  );
}

async function describeEgress(
  settings: LinuxNamespacesSettings,
  { egress }: FoundOnHost,
): Promise<readonly Finding[]> {
  if (egress !== undefined) return [ok(`sandboxes may reach the internet, by ${egress.description}`)];
  if (settings.egress === "none") return [ok("no sandbox reaches the internet (egress: none)")];
  const message = "no sandbox reaches the internet: this host cannot give sandboxes a network";
  return [warning(message, "see the warning of the server's log"), ...(await missingForEgress(settings))];
}

/** Since Linux 5.19 a user namespace counts the inotify instances of its own users. */
async function describeInotify({ root, release }: Host): Promise<readonly Finding[]> {
  const [major = 0, minor = 0] = release.split(".").map(Number);
  const most = Number(await readFile(join(root, INOTIFY_INSTANCES), "utf8").catch(() => Infinity));
  if (major > 5 || (major === 5 && minor >= 19) || most >= ENOUGH_INSTANCES) return [];
  const message = `all sandboxes together can watch files ${most} times: below Linux 5.19 they share the limit of one user of the host`;
  return [warning(message, `sysctl fs.inotify.max_user_instances=${ENOUGH_INSTANCES}`)];
}

async function describeSudo({ root }: Host): Promise<readonly Finding[]> {
  if (await canAccess(join(root, "usr/bin/sudo"), constants.X_OK)) return [];
  const message = "there is no sudo in sandboxes: templates are made of this host's /usr, which has none";
  return [warning(message, "apt-get install sudo")];
}

async function describeUnpacker({ users }: FoundOnHost, { root }: Host): Promise<Finding> {
  if (users?.hasAccounts === false)
    return warning("no image can be used: images need separate accounts", "see the warning about accounts");
  const path = await findHostProgram([UNPACKER], root);
  if (path !== undefined) return ok(`images are unpacked by ${path}`);
  return warning(
    `no image can be unpacked: this host does not have the program ${UNPACKER}`,
    `apt-get install ${UNPACKER}`,
  );
}

/** Checks that the Node.js of sandboxes is new enough for kernels of JavaScript and TypeScript. */
async function describeNode({ launcher }: FoundOnHost, node: string): Promise<readonly Finding[]> {
  const script = "console.log(process.version, !!require('node:module').stripTypeScriptTypes)";
  const { code, output } = await launcher.run([node, "-e", script]);
  const [version = "", strips] = code === 0 ? output.trim().split(" ") : [];
  if (strips === "true") return [];
  const message =
    version === ""
      ? `no JavaScript or TypeScript runs as code in sandboxes: ${node} is no Node.js`
      : `no TypeScript runs as code in sandboxes: ${node} is ${version}, which is older than 22.13`;
  return [warning(message, "name a Node.js of 22.13 or newer as linux-namespaces.node")];
}

async function describeTemplates(
  templates: FoundOnHost["templates"],
  names: Iterable<string>,
): Promise<readonly Finding[]> {
  const findings: Finding[] = [];
  for (const name of new Set(names)) {
    try {
      await templates.get(name);
      const what = name === CODE_INTERPRETER ? "has a Python with ipykernel" : "can be made";
      findings.push(ok(`template ${name} ${what}`));
    } catch (error) {
      findings.push({ severity: "fail", message: messageOf(error) });
    }
  }
  return findings;
}

async function likelyCauses(settings: LinuxNamespacesSettings): Promise<readonly Finding[]> {
  if (process.platform !== "linux") return [];
  const findings: Finding[] = [];
  const filesystems = await readFile("/proc/filesystems", "utf8").catch(() => "");
  if (!/\toverlay$/m.test(filesystems)) {
    const message = "the kernel has not loaded overlayfs, which the root of every sandbox is made of";
    findings.push(warning(message, "modprobe overlay"));
  }
  const isRoot = process.getuid?.() === 0;
  if (!isRoot) findings.push(await describeUserNamespaces());
  if (settings.egress === "nat") findings.push(...(await missingForEgress(settings)));
  return findings;
}

async function missingForEgress({ egressProgram }: LinuxNamespacesSettings): Promise<readonly Finding[]> {
  const findings = process.getuid?.() === 0 ? [] : [...(await describeUplink(egressProgram))];
  for (const [program, packageName] of Object.entries(EGRESS_PROGRAMS)) {
    if (await isOnPath(program)) continue;
    const message = `egress needs the program ${program}, which this host does not have`;
    findings.push(warning(message, `apt-get install ${packageName}`));
  }
  return findings;
}

async function describeUplink(configured: string | undefined): Promise<readonly Finding[]> {
  try {
    await findUplinkProgram(configured);
    return [];
  } catch (error) {
    const fix = "apt-get install passt (or slirp4netns); /dev/net/tun needs mode 666";
    return [warning(messageOf(error), fix)];
  }
}

async function describeUserNamespaces(): Promise<Finding> {
  const most = await readFile("/proc/sys/user/max_user_namespaces", "utf8").catch(() => "0");
  const restricted = await readFile("/proc/sys/kernel/unprivileged_userns_clone", "utf8").catch(() => "1");
  const state = Number(most) > 0 && restricted.trim() !== "0" ? "on" : "off";
  const message = `user namespaces are ${state} for this user, but sandboxes need them`;
  if (state === "off") {
    const fix =
      "start the server as root, or set user.max_user_namespaces and kernel.unprivileged_userns_clone";
    return warning(message, fix);
  }
  const isConfined = await readFile(APPARMOR, "utf8").catch(() => "0");
  if (isConfined.trim() === "0") return ok(message);
  return warning(
    "AppArmor denies the privileges in user namespaces",
    "start the server as root, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
  );
}

async function isOnPath(program: string): Promise<boolean> {
  for (const directory of (process.env["PATH"] ?? "").split(":")) {
    if (await canAccess(join(directory === "" ? "." : directory, program), constants.X_OK)) return true;
  }
  return false;
}
