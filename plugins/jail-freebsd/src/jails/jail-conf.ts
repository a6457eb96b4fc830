import { createHash } from "node:crypto";
import type { SandboxId } from "@coppice/core/backend";

export interface JailConfOptions {
  readonly name: string;
  readonly hostname: SandboxId;
  /** Where the clone is mounted. */
  readonly root: string;
  readonly stack: JailStack;
  readonly devfsRuleset: number;
  readonly procfs: boolean;
  /** True when it has a separate System V IPC. */
  readonly sysvipc: boolean;
  readonly mounts: readonly NullfsMount[];
  /** Parameters that this kernel knows. */
  readonly known: ReadonlySet<string>;
}

/**
 * Where the sockets of a jail are: in a network stack of its own with nothing but lo0, or in the host's, with one
 * address that is made an alias of an interface for as long as there is the jail.
 */
export type JailStack =
  | { readonly kind: "own" }
  | { readonly kind: "shared"; readonly link: string; readonly address: string };

/** A directory of the host inside a jail. */
export interface NullfsMount {
  readonly source: string;
  /** Absolute path inside. */
  readonly target: string;
  readonly readOnly: boolean;
  /** Whether sandboxes own what is in it: then nobody is raised by it. False when absent. */
  readonly isShared?: boolean;
}

/** A boolean parameter that is not known to every release: the one that the kernel lists, and what to say. */
const NEWER: readonly (readonly [listed: string, parameter: string])[] = [
  ["allow.extattr", "allow.noextattr"],
  ["allow.adjtime", "allow.noadjtime"],
  ["allow.settime", "allow.nosettime"],
  ["allow.routing", "allow.norouting"],
  ["allow.setaudit", "allow.nosetaudit"],
  ["allow.unprivileged_parent_tampering", "allow.nounprivileged_parent_tampering"],
];

/**
 * A jail.conf(5) for one jail of a tenant who is taken for hostile. It serves for making the jail and for
 * removing it: without it jail(8) would leave what is mounted.
 * @throws Error for a value with anything in it that is not plain.
 */
export function jailConf(options: JailConfOptions): string {
  const { name, hostname, root, stack, devfsRuleset, procfs, sysvipc, mounts, known } = options;
  const lines = [
    assign("path", root),
    assign("host.hostname", hostname),
    assign("host.hostuuid", uuidOf(hostname)),
    "persist;",
    ...stackLines(stack),
    "exec.clean;",
    assign("exec.timeout", "20"),
    // A process that ignores SIGTERM would hold up a removal for ten seconds.
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
 * A jail.conf(5) to remove a jail by whose own was lost: without a word on it, jail(8) would wait for those who ignore
 * SIGTERM. What is mounted stays. @throws Error for a value with anything in it that is not plain.
 */
export function removalConf({ name, root }: Pick<JailConfOptions, "name" | "root">): string {
  return `${plain(name)} { ${assign("path", root)} ${assign("stop.timeout", "0")} }\n`;
}

/** The same for the same sandbox, and no other's. */
function uuidOf(id: SandboxId): string {
  const digits = createHash("sha256").update(id).digest("hex");
  return [
    digits.slice(0, 8),
    digits.slice(8, 12),
    `8${digits.slice(13, 16)}`,
    `a${digits.slice(17, 20)}`,
    digits.slice(20, 32),
  ].join("-");
}

function stackLines(stack: JailStack): readonly string[] {
  if (stack.kind === "own") return ["vnet;"];
  // No other can be bound to; 127.0.0.1 is this one inside.
  return [`ip4.addr = "${plain(stack.link)}|${plain(stack.address)}/32";`, assign("ip6", "disable")];
}

function assign(name: string, value: string): string {
  return `${name} = "${plain(value)}";`;
}

/** Quoting is not relied on: what would need it is refused. */
function plain(text: string): string {
  if (!/^[A-Za-z0-9._@:/+-]+$/.test(text)) throw new Error(`'${text}' cannot be part of a jail.conf`);
  return text;
}
