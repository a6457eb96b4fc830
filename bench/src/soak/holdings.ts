import { execFile } from "node:child_process";
import { readdir, readFile, readlink } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

/** Descriptions of what a server and its sandboxes hold on this host, without singletons. */
export interface Holdings {
  readonly processes: readonly string[];
  readonly mounts: readonly string[];
  /** Descriptors of the server's process: their number by kind. */
  readonly descriptors: readonly string[];
  readonly networkNamespaces: readonly string[];
  readonly controlGroups: readonly string[];
  readonly interfaces: readonly string[];
  readonly rules: readonly string[];
  readonly files: readonly string[];
}

export interface HeldBy {
  /** The server's process. */
  readonly pid: number;
  /** Everything that the server keeps in files is below it. */
  readonly directory: string;
  /** Base URL. Connections that this process keeps open are not counted. */
  readonly port: number;
  /** Part of the names of objects that linux-namespaces makes on the host; undefined where there are none. */
  readonly digest: string | undefined;
}

// Contents of these outlive sandboxes, within their own limits. A template shows folders of the host.
const KEPT = /^data\/(commands\/logs|access)\/|-(wal|shm)$|^namespaces\/templates\/[^/]+\//;

/** Linux alone has all of this. */
export async function findHoldings(by: HeldBy): Promise<Holdings> {
  const pids = await ownPids(by);
  const { digest = "none" } = by;
  const own = new RegExp(`\\bcp${digest.slice(0, 6)}\\w+`, "g");
  const namespaces = await Promise.all(pids.map((pid) => link(`/proc/${pid}/ns/net`)));
  return {
    processes: (await Promise.all(pids.map(describeProcess))).sort(),
    mounts: (await text(`/proc/${by.pid}/mountinfo`))
      .split("\n")
      .filter((line) => line.includes(by.directory)),
    descriptors: await descriptorsOf(by),
    networkNamespaces: [...new Set(namespaces)].sort(),
    controlGroups: await groupsOf(digest),
    interfaces: [...(await output("ip", "-oneline", "link", "show")).matchAll(own)].map(([name]) => name),
    rules: [
      ...(await output("nft", "list", "table", "inet", `coppice_${digest}`)).matchAll(
        /(?:set|chain) \w+_\w+ |"cp\w+" : jump \w+/g,
      ),
    ].map(([rule]) => rule),
    files: (await readdir(by.directory, { recursive: true })).filter((name) => !KEPT.test(name)).sort(),
  };
}

/**
 * Objects of a linux-namespaces installation: a control group, interfaces, a table of rules. Found by the groups of
 * a running sandbox; undefined where it has none.
 */
export async function findDigest(by: Pick<HeldBy, "pid" | "directory">): Promise<string | undefined> {
  const groups = await Promise.all((await ownPids(by)).map((pid) => text(`/proc/${pid}/cgroup`)));
  return /coppice-([0-9a-f]{8})/.exec(groups.join("\n"))?.[1];
}

/** Descriptions of what has grown. */
export function growth(before: Holdings, now: Holdings): readonly string[] {
  return (Object.keys(before) as (keyof Holdings)[]).flatMap((kind) => {
    const left = [...before[kind]];
    const more = now[kind].filter((one) => {
      const index = left.indexOf(one);
      if (index >= 0) left.splice(index, 1);
      return index < 0;
    });
    return more.map((one) => `${kind}: ${one}`);
  });
}

/** The server, its descendants, and processes in mount namespaces that contain its directory. */
async function ownPids({ pid, directory }: Pick<HeldBy, "pid" | "directory">): Promise<readonly string[]> {
  const all = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const home = await link("/proc/self/ns/mnt");
  const parents = new Map<string, string>();
  const strays: string[] = [];
  await Promise.all(
    all.map(async (one) => {
      const stat = await text(`/proc/${one}/stat`);
      const [state = "Z", parent = ""] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      if (state === "Z" || state === "X") return;
      parents.set(one, parent);
      const isElsewhere = (await link(`/proc/${one}/ns/mnt`)) !== home;
      const isStray =
        (isElsewhere && (await text(`/proc/${one}/mountinfo`)).includes(directory)) ||
        (await link(`/proc/${one}/cwd`)).startsWith(directory);
      if (isStray) strays.push(one);
    }),
  );
  const descends = (one: string | undefined): boolean =>
    one !== undefined && (one === String(pid) || descends(parents.get(one)));
  return [...new Set([...[...parents.keys()].filter(descends), ...strays])];
}

async function describeProcess(pid: string): Promise<string> {
  return (await text(`/proc/${pid}/cmdline`)).replaceAll("\0", " ").trim() || `process ${pid}`;
}

async function groupsOf(digest: string): Promise<readonly string[]> {
  const mounts = (await text("/proc/self/mountinfo")).split("\n").filter((line) => / - cgroup2? /.test(line));
  const folders = mounts.map((line) => line.split(" ")[4] ?? "");
  const names = await Promise.all(folders.map(foldersBelow));
  return names
    .flat()
    .filter((path) => path.includes(`coppice-${digest}`))
    .sort();
}

/** Folder by folder: a recursive read of all fails where one goes meanwhile, and groups of others come and go. */
async function foldersBelow(folder: string): Promise<readonly string[]> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  const own = entries.filter((entry) => entry.isDirectory()).map(({ name }) => join(folder, name));
  return [...own, ...(await Promise.all(own.map(foldersBelow))).flat()];
}

async function descriptorsOf({ pid, port }: HeldBy): Promise<readonly string[]> {
  const folder = `/proc/${pid}/fd`;
  const targets = await Promise.all((await readdir(folder)).map((name) => link(join(folder, name))));
  const ours = await connectionsTo(pid, port);
  return targets
    .filter((target) => !ours.has(target))
    .map((target) => target.replace(/:\[\d+\]$/, ""))
    .sort();
}

const ESTABLISHED = "01";

/** Sockets of a process that were accepted on a port and are connected. */
async function connectionsTo(pid: number, port: number): Promise<ReadonlySet<string>> {
  const local = `:${port.toString(16).toUpperCase().padStart(4, "0")}`;
  const rows = (await text(`/proc/${pid}/net/tcp`)).split("\n").map((line) => line.trim().split(/ +/));
  const found = rows.filter(([, address = "", , state]) => address.endsWith(local) && state === ESTABLISHED);
  return new Set(found.map((row) => `socket:[${row[9]}]`));
}

function text(path: string): Promise<string> {
  return readFile(path, "utf8").catch(() => "");
}

function link(path: string): Promise<string> {
  return readlink(path).catch(() => "");
}

async function output(program: string, ...words: readonly string[]): Promise<string> {
  return run(program, words, { maxBuffer: 2 ** 26 }).then(
    ({ stdout }) => stdout,
    () => "",
  );
}
