import { MOST_IN_PLACE_BYTES } from "@coppice/agent";
import { duration, size } from "@coppice/core";
import { z } from "zod";
import { networkSettings } from "./network-config.js";

// What is put into jail.conf(5) and zfs(8) by name: nothing in it that a quote could be closed with.
const plainPath = z
  .string()
  .regex(/^(\/[A-Za-z0-9._@:+-]+)+$/, "expected an absolute path of plain characters");
const datasetName = z
  .string()
  .regex(
    /^[A-Za-z0-9][A-Za-z0-9._:-]*(\/[A-Za-z0-9][A-Za-z0-9._:-]*)*$/,
    "expected the name of a ZFS dataset",
  );

const program = (path: string, what: string) => plainPath.default(path).describe(what);

const mountSettings = z.strictObject({
  source: plainPath.describe("Directory on the host"),
  target: plainPath.describe("Directory inside, which the template has"),
  readOnly: z.boolean().default(true).describe("Whether sandboxes may change what is in it"),
});

const templateSettings = z.strictObject({
  snapshot: z
    .string()
    .regex(/^[A-Za-z0-9._:/-]+@[A-Za-z0-9._:-]+$/, "expected dataset@snapshot")
    .optional()
    .describe(
      "Snapshot to clone, <parent>/<name>-template@base when absent; base is <parent>/_template@base",
    ),
  user: z.string().min(1).default("user").describe("Default account of its sandboxes"),
  mounts: z.array(mountSettings).default([]).describe("Directories of the host that are mounted by nullfs"),
});

export const jailFreebsdConfig = z.strictObject({
  dataset: datasetName
    .default("zroot/jails")
    .describe("Parent of templates and sandboxes; nothing above it or beside it is ever touched"),
  directory: plainPath
    .default("/var/db/coppice/jails")
    .describe(
      "Where jail.conf files and sockets are kept, outlasting restarts; one server at a time uses it",
    ),
  templates: z
    .record(z.string().regex(/^[A-Za-z0-9._-]+$/), templateSettings)
    .default({})
    .describe("What is different about templates, by name; those not named need only their snapshot"),
  agent: plainPath
    .optional()
    .describe("The agent's program for this host; what was built, or COPPICE_AGENT, when absent"),
  agentInside: plainPath
    .default("/.coppice")
    .describe("Empty directory of every template on which the agent's program is mounted, read-only"),
  commands: z
    .enum(["jexec", "agent"])
    .default("jexec")
    .describe("Program that starts commands: jexec(8) on the host, or the agent inside, which is faster"),
  devfsRuleset: z.int().min(1).default(200).describe("Ruleset of devfs.rules for /dev of sandboxes"),
  procfs: z.boolean().default(false).describe("Give sandboxes a /proc"),
  sysvipc: z
    .boolean()
    .default(false)
    .describe(
      "Give sandboxes System V IPC of their own, as PostgreSQL needs: the host has few identifiers, for all of them together",
    ),
  limits: z
    .strictObject({
      cpuCount: z.number().positive().default(2).describe("CPUs"),
      memoryMiB: z.int().min(16).default(1024).describe("Memory in MiB"),
      diskMiB: z.int().min(16).default(10_240).describe("Disk in MiB"),
      processes: z.int().min(16).default(512).describe("Processes at one time"),
      threads: z.int().min(64).default(4096).describe("Threads of all its processes together"),
      openFiles: z.int().min(256).default(65_536).describe("Open files of all its processes together"),
      terminals: z.int().min(1).default(256).describe("Pseudo-terminals"),
      memoryReservation: z
        .number()
        .min(1)
        .default(2)
        .describe(
          "How many times its memory it may have reserved before more is refused (swapuse of rctl(8))",
        ),
    })
    .prefault({})
    .describe("What a sandbox gets where neither its creator nor its template says"),
  network: networkSettings.prefault({}).describe("How sandboxes are connected to what is outside"),
  volumeOwner: z
    .int()
    .min(0)
    .default(1000)
    .describe("Uid and gid that a new volume belongs to: those of the accounts that sandboxes run as"),
  usageMaximumAge: duration()
    .prefault("1s")
    .describe(
      "Greatest age of the resource usage in an answer; the usage of all sandboxes is measured together",
    ),
  sweepEvery: duration()
    .prefault("60s")
    .describe("How often remains of failed sandboxes are looked for and removed"),
  hostCommandTimeout: duration()
    .prefault("30s")
    .describe("How long a command of the host may take before it is killed and counts as failed"),
  templateCommandTimeout: duration()
    .prefault("30m")
    .describe("How long a program may take that builds a template"),
  templateSignatures: z
    .strictObject({
      publicKey: plainPath.describe("signify(1)'s public key"),
      directory: plainPath.describe(
        "Signatures of the guids of snapshots: <dataset>@<snapshot>.sig or <template>.sig",
      ),
    })
    .optional()
    .describe("Accept only templates that are signed"),
  writeInPlaceLimit: size()
    .refine((bytes) => bytes <= MOST_IN_PLACE_BYTES, "at most 240KiB: it goes to the sandbox in one piece")
    .prefault("128KiB")
    .describe("Files up to this size are written in place at once, larger ones beside it and moved in"),
  programs: z
    .strictObject({
      zfs: program("/sbin/zfs", "zfs(8)"),
      jail: program("/usr/sbin/jail", "jail(8)"),
      jexec: program("/usr/sbin/jexec", "jexec(8)"),
      jls: program("/usr/sbin/jls", "jls(8)"),
      ifconfig: program("/sbin/ifconfig", "ifconfig(8)"),
      pkill: program("/bin/pkill", "pkill(1)"),
      ps: program("/bin/ps", "ps(1)"),
      rctl: program("/usr/bin/rctl", "rctl(8)"),
      mount: program("/sbin/mount", "mount(8)"),
      umount: program("/sbin/umount", "umount(8)"),
      devfs: program("/sbin/devfs", "devfs(8)"),
      pfctl: program("/sbin/pfctl", "pfctl(8)"),
      route: program("/sbin/route", "route(8)"),
      arp: program("/usr/sbin/arp", "arp(8)"),
      sockstat: program("/usr/bin/sockstat", "sockstat(1)"),
      sysctl: program("/sbin/sysctl", "sysctl(8)"),
      tar: program("/usr/bin/tar", "tar(1)"),
      pkg: program("/usr/sbin/pkg", "pkg(8)"),
      pw: program("/usr/sbin/pw", "pw(8)"),
      install: program("/usr/bin/install", "install(1)"),
      mkdir: program("/bin/mkdir", "mkdir(1)"),
      chown: program("/usr/sbin/chown", "chown(8)"),
      ln: program("/bin/ln", "ln(1)"),
      realpath: program("/bin/realpath", "realpath(1)"),
      signify: program("/usr/local/bin/signify", "signify(1)"),
    })
    .prefault({})
    .describe("Full paths of the programs of the host; nothing is ever looked up"),
});

/** The parsed settings of the plugin. */
export type JailSettings = z.infer<typeof jailFreebsdConfig>;
