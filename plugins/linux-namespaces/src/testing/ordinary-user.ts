import { execFileSync, spawnSync } from "node:child_process";
import { chown, mkdir, mkdtemp, readFile, readdir, rm, rmdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { launcherBinary } from "../launcher/host-programs.js";
import { COMPILED, type Place } from "./test-apart.js";

/** Files of a delegated group that its user must be able to write. */
const DELEGATED_FILES = ["cgroup.procs", "tasks", "cgroup.threads", "cgroup.subtree_control"];
/** Controllers that the backend looks for; the empty name is version 2. */
const CONTROLLERS = ["", "memory", "cpu", "cpuacct", "cpu,cpuacct", "pids", "freezer"];
/** Joins the groups and becomes the user, without capabilities. */
const BECOME = 'for each in $1; do echo $$ > "$each/cgroup.procs"; done; shift; exec setpriv "$@"';

/** An account of this host without privileges. */
export interface OrdinaryUser {
  readonly uid: number;
  /** Directories of control groups delegated to it. */
  readonly groups: readonly string[];
}

/** Reason why tests cannot run as another user; undefined when they can. */
export function reasonWithoutOrdinaryUser(): string | undefined {
  if (process.platform !== "linux") return "linux-namespaces needs Linux";
  if (process.getuid?.() !== 0) return "only root can run tests as another user";
  const nobody = 65_533;
  const asNobody = (...words: string[]): boolean =>
    spawnSync("setpriv", [`--reuid=${nobody}`, `--regid=${nobody}`, "--clear-groups", ...words]).status === 0;
  if (!asNobody("true")) return "the program setpriv is missing";
  if (!asNobody("unshare", "--user", "--map-root-user", "true")) {
    return "this host lets no ordinary user make user namespaces";
  }
  if (!asNobody("test", "-r", COMPILED) || !asNobody(process.execPath, "--version")) {
    return "other users cannot read this checkout or its Node";
  }
  return undefined;
}

/** Reason why there is no user with subordinate ids; undefined when there is. */
export function reasonWithoutSubordinateIds(): string | undefined {
  for (const [program, ...words] of [["useradd", "--help"], ["newuidmap"], ["newgidmap"]] as const) {
    if (spawnSync(program, words).error !== undefined)
      return `the program ${program} is missing (apt: uidmap)`;
  }
  return undefined;
}

/** Compiles the launcher if the package is writable; otherwise each test directory would compile it. */
export async function compileForAll(): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-launcher-"));
  await launcherBinary(directory);
  await rm(directory, { recursive: true });
}

/** Creates an account with subordinate ids and delegated control groups; dispose removes all of it. */
export async function makeOrdinaryUser(): Promise<OrdinaryUser & AsyncDisposable> {
  const name = `coppice-test-${process.pid}`;
  execFileSync("useradd", ["--no-create-home", "--home-dir", "/nonexistent", name]);
  const [, , uid = ""] = (await accountLine(name)).split(":");
  const groups = await makeGroups(name, Number(uid));
  return {
    uid: Number(uid),
    groups,
    async [Symbol.asyncDispose]() {
      for (const group of groups) await removeGroups(group);
      execFileSync("userdel", [name], { stdio: "ignore" });
    },
  };
}

/** Place that runs tests as the user. */
export function placeOf({ uid, groups }: OrdinaryUser): Place {
  const identity = [`--reuid=${uid}`, `--regid=${uid}`, "--clear-groups", "--inh-caps=-all", "--"];
  return { uid, enter: ["/bin/sh", "-ec", BECOME, "sh", groups.join(" "), ...identity] };
}

async function accountLine(name: string): Promise<string> {
  const lines = (await readFile("/etc/passwd", "utf8")).split("\n");
  return lines.find((line) => line.startsWith(`${name}:`)) ?? "";
}

/** Creates a child of this process's group in each hierarchy. */
async function makeGroups(name: string, uid: number): Promise<string[]> {
  const mounts = (await readFile("/proc/self/mountinfo", "utf8")).split("\n");
  const own = (await readFile("/proc/self/cgroup", "utf8")).trim().split("\n");
  const made: string[] = [];
  for (const line of own) {
    const [, controllers = "", path = ""] = line.split(":");
    const kind = controllers === "" ? / - cgroup2 / : new RegExp(` - cgroup .*[ ,]${controllers}(,|$)`);
    const mount = mounts.find((each) => kind.test(each))?.split(" ")[4];
    if (mount === undefined || !CONTROLLERS.includes(controllers)) continue;
    const group = join(mount, path, name);
    await mkdir(group);
    made.push(group);
    await chown(group, uid, uid);
    for (const file of await readdir(group)) {
      if (DELEGATED_FILES.includes(file)) await chown(join(group, file), uid, uid);
    }
  }
  return made;
}

async function removeGroups(group: string): Promise<void> {
  for (const entry of await readdir(group, { withFileTypes: true })) {
    if (entry.isDirectory()) await removeGroups(join(group, entry.name));
  }
  await writeFile(join(group, "cgroup.kill"), "1", { flag: "r+" }).catch(() => undefined);
  await rmdir(group);
}
