import { duration, size } from "@coppice/core";
import { NOT_PUBLIC_IPV4 } from "@coppice/core/backend";
import { z } from "zod";

// Written into jail.conf(5) and zfs(8) unquoted: no character may end a value.
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
  readOnly: z.boolean().default(true).describe("Keep sandboxes from changing its contents"),
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

/** Accepted by ifconfig(8) and pf.conf(5), with room for the number of an interface. */
const interfaceName = z.string().regex(/^[a-z][a-z0-9_]{0,13}$/, "expected the name of an interface");

const networkSettings = z.strictObject({
  kind: z
    .enum(["none", "vnet"])
    .default("none")
    .describe("none: lo0 alone; vnet: an epair(4) on a bridge, and an anchor of pf for each sandbox"),
  bridge: interfaceName
    .default("coppicenet0")
    .describe("The host's bridge for sandboxes, which has the first address of range"),
  range: z
    .string()
    .regex(/^\d{1,3}(\.\d{1,3}){3}\/(1[89]|2[0-8])$/, "expected an IPv4 range of /18 to /28")
    .pipe(z.cidrv4())
    .default("10.78.0.0/20")
    .describe("Addresses for sandboxes, from the tenth on; not used elsewhere on this host or its networks"),
  firstEpair: z
    .int()
    .min(0)
    .max(16_000)
    .default(10_000)
    .describe("Number of the first epair; the server uses one from here on for each address of range"),
  anchor: z
    .string()
    .regex(/^[A-Za-z0-9_-]{1,32}$/, "expected the name of a pf anchor")
    .default("coppice")
    .describe(
      'Parent anchor in pf.conf, `anchor "<name>/*"`, of the anchors of sandboxes; others below it are removed',
    ),
  blocked: z
    .array(z.cidrv4())
    .default([...NOT_PUBLIC_IPV4])
    .describe(
      "Address ranges that no sandbox reaches, whatever its rules; the host itself is always blocked",
    ),
  resolvers: z
    .array(z.ipv4())
    .default([])
    .describe(
      "Name servers that every sandbox may ask, even without internet access and if listed in blocked",
    ),
  connections: z
    .int()
    .min(16)
    .default(10_000)
    .describe("Maximum of pf states per rule of a sandbox; more connections are refused"),
});

export const jailFreebsdConfig = z.strictObject({
  dataset: datasetName
    .default("zroot/jails")
    .describe("Parent dataset of templates and sandboxes; datasets outside of it are never changed"),
  directory: plainPath
    .default("/var/db/coppice/jails")
    .describe("Directory of jail.conf files and sockets that outlast restarts; one server at a time uses it"),
  templates: z
    .record(z.string().regex(/^[A-Za-z0-9._-]+$/), templateSettings)
    .default({})
    .describe("Settings of templates by name; a template without settings needs only its snapshot"),
  agent: plainPath
    .optional()
    .describe("Agent program for this host; the built one, or COPPICE_AGENT, when absent"),
  agentInside: plainPath
    .default("/.coppice")
    .describe("Empty directory in every template, where the agent program is mounted read-only"),
  devfsRuleset: z.int().min(1).default(200).describe("Ruleset of devfs.rules for /dev of sandboxes"),
  procfs: z.boolean().default(false).describe("Give sandboxes a /proc"),
  sysvipc: z
    .boolean()
    .default(false)
    .describe(
      "Give each sandbox separate System V IPC, as PostgreSQL needs; all share the few identifiers of the host",
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
          "Memory reservation limit as a multiple of memoryMiB (swapuse of rctl(8)); more is refused",
        ),
    })
    .prefault({})
    .describe("Limits when neither the creator nor the template sets them"),
  network: networkSettings.prefault({}).describe("Network of sandboxes"),
  volumeOwner: z
    .int()
    .min(0)
    .default(1000)
    .describe("Uid and gid of new volumes: those of the default accounts of templates"),
  hostCommandTimeout: duration("30s").describe("Time after which a command of the host is killed and fails"),
  hostOutputLimit: size()
    .prefault("8MiB")
    .describe(
      "Output of a command of the host beyond which it fails; lists of datasets are read line by line, of any length",
    ),
  templateCommandTimeout: duration("30m").describe(
    "Timeout of each program that unpacks or packs an image of a template",
  ),
  unpackerLibraries: z
    .array(plainPath)
    .default(["/lib", "/libexec", "/usr/lib"])
    .describe(
      "Directories of the host that umoci(1) and tar(1) see in their jails, beside those of programs",
    ),
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
      sysctl: program("/sbin/sysctl", "sysctl(8)"),
      daemon: program("/usr/sbin/daemon", "daemon(8), which `coppice doctor` tries"),
      tar: program("/usr/bin/tar", "tar(1), that of FreeBSD"),
      pkg: program("/usr/sbin/pkg", "pkg(8), which `coppice doctor` asks"),
      install: program("/usr/bin/install", "install(1)"),
      mkdir: program("/bin/mkdir", "mkdir(1)"),
      chown: program("/usr/sbin/chown", "chown(8)"),
      realpath: program("/bin/realpath", "realpath(1)"),
      find: program("/usr/bin/find", "find(1)"),
      rm: program("/bin/rm", "rm(1)"),
      sort: program("/usr/bin/sort", "sort(1)"),
      sh: program("/bin/sh", "sh(1), which sets limits of a process"),
      umoci: program("/usr/local/bin/umoci", "umoci(1), which unpacks images"),
    })
    .prefault({})
    .describe("Full paths of the programs of the host; PATH is not searched"),
});

export type JailSettings = z.infer<typeof jailFreebsdConfig>;

export type NetworkSettings = JailSettings["network"];
