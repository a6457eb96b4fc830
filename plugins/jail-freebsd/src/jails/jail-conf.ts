import { uuidOf } from "@coppice/core";
import type { SandboxId } from "@coppice/core/backend";

export interface JailConfOptions {
  readonly name: string;
  readonly hostname: SandboxId;
  readonly root: string;
  readonly devfsRuleset: number;
  readonly procfs: boolean;
  readonly sysvipc: boolean;
  readonly mounts: readonly NullfsMount[];
  readonly known: ReadonlySet<string>;
}

export interface NullfsMount {
  readonly source: string;
  readonly target: string;
  readonly readOnly: boolean;
  /** True for a volume, which sandboxes write to: mounted nosuid. False when absent. */
  readonly isShared?: boolean;
}

/** A boolean parameter that only newer releases have: its name in the kernel's list, and its setting. */
const NEWER: readonly (readonly [listed: string, parameter: string])[] = [
  ["allow.extattr", "allow.noextattr"],
  ["allow.adjtime", "allow.noadjtime"],
  ["allow.settime", "allow.nosettime"],
  ["allow.routing", "allow.norouting"],
  ["allow.setaudit", "allow.nosetaudit"],
  ["allow.unprivileged_parent_tampering", "allow.nounprivileged_parent_tampering"],
];

/**
 * A jail.conf(5) for one jail of a hostile tenant. It creates and removes the jail: without it, jail(8) would leave
 * mounts.
 * @throws Error for a value with characters that are not plain.
 */
export function jailConf(options: JailConfOptions): string {
  const { name, hostname, root, devfsRuleset, procfs, sysvipc, mounts, known } = options;
  const lines = [
    assign("path", root),
    assign("host.hostname", hostname),
    assign("host.hostuuid", uuidOf(hostname)),
    "persist;",
    // A network stack of its own, which has lo0 alone at first.
    "vnet;",
    "exec.clean;",
    assign("exec.timeout", "20"),
    // Otherwise a process that ignores SIGTERM delays the removal by ten seconds.
    assign("stop.timeout", "0"),
    ...mounts.map(({ source, target, readOnly, isShared = false }) => {
      const options = `${readOnly ? "ro" : "rw"}${isShared ? ",nosuid" : ""}`;
      return `mount += "${plain(source)} ${plain(root + target)} nullfs ${options} 0 0";`;
    }),
    "mount.devfs;",
    assign("devfs_ruleset", String(devfsRuleset)),
    ...(procfs ? ["mount.procfs;"] : []),
    assign("enforce_statfs", "2"),
    assign("children.max", "0"),
    assign("securelevel", "3"),
    ...(sysvipc
      ? ["sysvmsg", "sysvsem", "sysvshm"].map((each) => assign(each, "new"))
      : ["allow.nosysvipc;"]),
    "allow.noset_hostname;",
    "allow.noraw_sockets;",
    "allow.nomount;",
    "allow.nochflags;",
    "allow.nomlock;",
    "allow.noread_msgbuf;",
    "allow.nosocket_af;",
    "allow.noquotas;",
    "allow.nounprivileged_proc_debug;",
    ...NEWER.filter(([listed]) => known.has(listed)).map(([, parameter]) => `${parameter};`),
  ];
  return `${plain(name)} {\n${lines.map((line) => `  ${line}\n`).join("")}}\n`;
}

/**
 * A jail.conf(5) that removes a jail whose own file was lost. Without its stop.timeout, jail(8) would wait for
 * processes that ignore SIGTERM. Mounts stay.
 * @throws Error for a value with characters that are not plain.
 */
export function removalConf({ name, root }: Pick<JailConfOptions, "name" | "root">): string {
  return `${plain(name)} { ${assign("path", root)} ${assign("stop.timeout", "0")} }\n`;
}

function assign(name: string, value: string): string {
  return `${name} = "${plain(value)}";`;
}

/** Values are never quoted: one that would need quotes is refused. */
function plain(text: string): string {
  if (!/^[A-Za-z0-9._@:/+-]+$/.test(text)) throw new Error(`'${text}' cannot be part of a jail.conf`);
  return text;
}
