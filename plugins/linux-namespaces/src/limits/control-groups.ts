import { access, constants, mkdir, readFile, readdir, rmdir, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { ignoring, readAtOnce } from "@coppice/core/backend";
import { SandboxError, MEBIBYTE } from "@coppice/core";
import { canAccess } from "../launcher/host-programs.js";
import type { GroupFile } from "../launcher/launcher.js";
import { GroupClock } from "./group-clock.js";
import { REASONS } from "../reasons.js";

/** Controllers that measure and limit a sandbox. `cpuacct` is part of `cpu` in version 2. */
export type Controller = "memory" | "cpu" | "cpuacct" | "pids" | "freezer";
const CONTROLLERS: readonly Controller[] = ["memory", "cpu", "cpuacct", "pids", "freezer"];

interface Hierarchy {
  readonly version: 1 | 2;
  /** Directory for this installation's groups. */
  readonly parent: string;
}

/** Directories of one sandbox, by controller; controllers of version 2 share one. */
interface GroupRecord {
  readonly [controller: string]: { readonly version: 1 | 2; readonly path: string };
}

interface GroupLimits {
  readonly memoryMiB: number;
  readonly cpuCount: number;
  readonly processes: number;
}

export interface GroupUsage {
  /** Microseconds of CPU time on all CPUs. */
  readonly cpuMicros: number | undefined;
  readonly memoryBytes: number | undefined;
  readonly memoryCacheBytes: number | undefined;
}

const CPU_PERIOD_MICROS = 100_000;
/** Group of the server itself below a delegated group; the systemd unit uses the same name. */
const SUPERVISOR = "supervisor";
const REMOVE_ATTEMPTS = 50;
const REMOVE_PAUSE_MS = 10;
/** Processes that wait for a busy disk freeze only after that wait. */
const FREEZE_TIMEOUT_MS = 10_000;
const FREEZE_PAUSE_MS = 10;

/** Control groups of this host that the server may use: version 2 where possible, otherwise version 1 by controller. */
export class ControlGroups {
  readonly #hierarchies: ReadonlyMap<Controller, Hierarchy>;

  private constructor(hierarchies: ReadonlyMap<Controller, Hierarchy>) {
    this.#hierarchies = hierarchies;
  }

  /**
   * Finds the mounted hierarchies that the server can write to.
   * @param name directory for this installation's groups.
   */
  static async find(name: string): Promise<ControlGroups> {
    const own = parseMembership(await readFile("/proc/self/cgroup", "utf8").catch(() => ""));
    const mounts = parseMounts(await readFile("/proc/self/mountinfo", "utf8").catch(() => ""));
    const found = new Map<Controller, Hierarchy>();
    const unified = mounts.find(({ version }) => version === 2);
    if (unified !== undefined) {
      const parent = await openUnified(unified.path, own.get("") ?? "/", name).catch(() => undefined);
      for (const controller of parent?.controllers ?? [])
        found.set(controller, { version: 2, parent: parent?.path ?? "" });
    }
    for (const controller of CONTROLLERS) {
      if (found.has(controller)) continue;
      const mount = mounts.find(
        ({ version, controllers }) => version === 1 && controllers.includes(controller),
      );
      if (mount === undefined) continue;
      const member = own.get(controller) ?? "/";
      const inside = mount.root === "/" ? member : member.slice(mount.root.length);
      const parent = join(mount.path, inside, name);
      if (await makeGroup(parent)) found.set(controller, { version: 1, parent });
    }
    return new ControlGroups(found);
  }

  get found(): ReadonlyMap<Controller, 1 | 2> {
    return new Map([...this.#hierarchies].map(([controller, { version }]) => [controller, version]));
  }

  of(id: string): ControlGroup {
    const record: Record<string, GroupRecord[string]> = {};
    for (const [controller, { version, parent }] of this.#hierarchies)
      record[controller] = { version, path: join(parent, id) };
    return new ControlGroup(record);
  }

  async removeOthers(known: ReadonlySet<string>): Promise<void> {
    const parents = new Set([...this.#hierarchies.values()].map(({ parent }) => parent));
    for (const parent of parents) {
      for (const entry of await readdir(parent, { withFileTypes: true }).catch(() => [])) {
        if (!entry.isDirectory() || known.has(entry.name)) continue;
        await endMembers(join(parent, entry.name));
        await removeGroup(join(parent, entry.name));
      }
    }
  }

  async close(): Promise<void> {
    for (const { parent } of this.#hierarchies.values()) await rmdir(parent).catch(() => undefined);
  }
}

export class ControlGroup {
  readonly record: GroupRecord;
  readonly #clock: GroupClock;

  constructor(record: GroupRecord) {
    this.record = record;
    const { cpu, cpuacct } = record;
    this.#clock = cpu?.version === 2 ? new GroupClock(cpu.path, 2) : new GroupClock(cpuacct?.path, 1);
  }

  get paths(): readonly string[] {
    return [...new Set(Object.values(this.record).map(({ path }) => path))];
  }

  /** Group that a process must start in; empty without version 2. */
  get unifiedPath(): string {
    return Object.values(this.record).find(({ version }) => version === 2)?.path ?? "";
  }

  /**
   * Files of version 1 that move the writing thread. Moving a whole process would make the kernel stop all others for
   * some milliseconds.
   */
  get joinFiles(): readonly string[] {
    return this.paths.filter((path) => path !== this.unifiedPath).map((path) => join(path, "tasks"));
  }

  get canLimit(): boolean {
    return this.record["memory"] !== undefined && this.record["cpu"] !== undefined;
  }

  get canFreeze(): boolean {
    return this.record["freezer"] !== undefined;
  }

  /** File that thaws killed processes in a version 1 freezer. */
  get thawFile(): string | undefined {
    const freezer = this.record["freezer"];
    return freezer?.version === 1 ? join(freezer.path, "freezer.state") : undefined;
  }

  async limit(limits: GroupLimits): Promise<void> {
    await this.#limit(limits).catch((cause: NodeJS.ErrnoException) => {
      if (cause.code !== "EBUSY") throw cause;
      throw new SandboxError("limits_below_use", "the sandbox uses more memory than that", { cause });
    });
  }

  async #limit(limits: GroupLimits): Promise<void> {
    const { memory } = this.record;
    const before = memory?.version === 1 ? await read(memory.path, "memory.limit_in_bytes") : undefined;
    const isRaised = limits.memoryMiB * MEBIBYTE > (number(before) ?? Number.POSITIVE_INFINITY);
    for (const { path, text, isOptional } of this.limitFiles(limits, isRaised)) {
      const written = writeFile(path, text, { flag: "r+" });
      await (isOptional ? written.catch(ignoring("ENOENT")) : written);
    }
  }

  /** Files that limit the groups, in the order of their writing. @param isRaised of the limit of memory. */
  limitFiles(limits: GroupLimits, isRaised = false): readonly GroupFile[] {
    const { memory, cpu, pids } = this.record;
    const quota = String(Math.max(1_000, Math.round(limits.cpuCount * CPU_PERIOD_MICROS)));
    const period = String(CPU_PERIOD_MICROS);
    return [
      ...(memory === undefined ? [] : memoryFiles(memory, String(limits.memoryMiB * MEBIBYTE), isRaised)),
      ...(cpu?.version === 1
        ? [file(cpu.path, "cpu.cfs_period_us", period), file(cpu.path, "cpu.cfs_quota_us", quota)]
        : []),
      ...(cpu?.version === 2 ? [file(cpu.path, "cpu.max", `${quota} ${period}`)] : []),
      ...(pids === undefined ? [] : [file(pids.path, "pids.max", String(limits.processes))]),
    ];
  }

  async usage(): Promise<GroupUsage> {
    const { memory, cpu, cpuacct } = this.record;
    const [cpuText, memoryText, memoryStatistics] = await Promise.all([
      cpu?.version === 2 ? read(cpu.path, "cpu.stat") : read(cpuacct?.path, "cpuacct.usage"),
      read(memory?.path, memory?.version === 2 ? "memory.current" : "memory.usage_in_bytes"),
      read(memory?.path, "memory.stat"),
    ]);
    const cpuMicros = cpu?.version === 2 ? field(cpuText, "usage_usec") : number(cpuText, 1_000);
    return {
      cpuMicros,
      memoryBytes: number(memoryText),
      memoryCacheBytes: field(memoryStatistics, memory?.version === 2 ? "file" : "total_cache"),
    };
  }

  /**
   * Files of the host that tell the limits and the use of memory and processors: limit, use and parts of memory, quota
   * and use of time. Undefined without these limits.
   */
  get shownFiles(): readonly string[] | undefined {
    const { memory, cpu, cpuacct } = this.record;
    if (memory === undefined || cpu === undefined) return undefined;
    const ofMemory =
      memory.version === 2
        ? ["memory.max", "memory.current"]
        : ["memory.limit_in_bytes", "memory.usage_in_bytes"];
    const used = cpuacct === undefined ? "/dev/null" : join(cpuacct.path, "cpuacct.usage");
    return [
      ...[...ofMemory, "memory.stat"].map((name) => join(memory.path, name)),
      ...(cpu.version === 2
        ? [join(cpu.path, "cpu.max"), join(cpu.path, "cpu.stat")]
        : [join(cpu.path, "cpu.cfs_quota_us"), used]),
    ];
  }

  /**
   * Processor time that its processes have used until now, as the kernel's text: equal texts mean that none has run in
   * between. Undefined where it is unknown.
   */
  get clock(): string | undefined {
    return this.#clock.now();
  }

  /** As `clock`, or as it was a few milliseconds ago: less is read where no sandbox does anything. */
  get recentClock(): string | undefined {
    return this.#clock.recent();
  }

  /** Processor time in seconds, as `recentClock` has it. */
  get cpuSeconds(): number | undefined {
    const text = this.recentClock;
    return this.record["cpu"]?.version === 2
      ? number(text?.replace("usage_usec ", ""), 1_000_000)
      : number(text, 1_000_000_000);
  }

  /** Processes that the kernel killed at the limit of memory, and processes that it refused at theirs, so far. */
  shortageCounts(): Readonly<Record<"memory" | "processes", number>> {
    const { memory, pids } = this.record;
    const ofMemory = fileAtOnce(memory?.path, memory?.version === 2 ? "memory.events" : "memory.oom_control");
    const ofProcesses = fileAtOnce(pids?.path, "pids.events");
    return { memory: field(ofMemory, "oom_kill") ?? 0, processes: field(ofProcesses, "max") ?? 0 };
  }

  async freeze(): Promise<void> {
    await this.#setFrozen(true);
  }

  async thaw(): Promise<void> {
    await this.#setFrozen(false);
  }

  /** Removes the groups, which must be empty or about to be. Missing ones are fine. */
  async remove(): Promise<void> {
    for (const path of this.paths) await removeGroup(path);
  }

  async #setFrozen(isFrozen: boolean): Promise<void> {
    const freezer = this.record["freezer"];
    if (freezer === undefined) throw new SandboxError(REASONS.freezer_missing, "there is no freezer");
    const [file, text] =
      freezer.version === 2
        ? ["cgroup.freeze", isFrozen ? "1" : "0"]
        : ["freezer.state", isFrozen ? "FROZEN" : "THAWED"];
    await write(freezer.path, file, text);
    const isSettled = async (): Promise<boolean> => {
      const state = await read(freezer.path, freezer.version === 2 ? "cgroup.events" : "freezer.state");
      // The sandbox ended meanwhile, and its group with it.
      if (state === undefined) throw new SandboxError("sandbox_ended", "the sandbox has ended");
      return freezer.version === 2 ? field(state, "frozen") === Number(isFrozen) : state.trim() === text;
    };
    const deadline = performance.now() + FREEZE_TIMEOUT_MS;
    do {
      if (await isSettled()) return;
      await sleep(FREEZE_PAUSE_MS);
    } while (performance.now() < deadline);
    if (isFrozen) await this.#setFrozen(false);
    throw new SandboxError("backend_timeout", `the sandbox could not be ${isFrozen ? "frozen" : "thawed"}`);
  }
}

function memoryFiles({ version, path }: GroupRecord[string], bytes: string, isRaised: boolean): GroupFile[] {
  if (version === 2)
    return [file(path, "memory.max", bytes), { ...file(path, "memory.swap.max", "0"), isOptional: true }];
  // The limit with swap can never be less than the one without: it is raised first and lowered last. It exists only
  // where the kernel accounts for swap; elsewhere swapped memory is not limited.
  const withSwap = { ...file(path, "memory.memsw.limit_in_bytes", bytes), isOptional: true };
  const alone = file(path, "memory.limit_in_bytes", bytes);
  return isRaised ? [withSwap, alone] : [alone, withSwap];
}

function file(path: string, name: string, text: string): GroupFile {
  return { path: join(path, name), text, isOptional: false };
}

async function membersOf(path: string): Promise<readonly string[]> {
  return (await read(path, "cgroup.procs"))?.split("\n").filter(Boolean) ?? [];
}

/** Also kills processes of a dead server that remain in the group. */
async function endMembers(path: string): Promise<void> {
  await write(path, "cgroup.kill", "1").catch(() => undefined);
  for (let attempt = 0; attempt < REMOVE_ATTEMPTS; attempt++) {
    const members = await membersOf(path);
    if (members.length === 0) return;
    for (const pid of members) {
      try {
        process.kill(Number(pid), "SIGKILL");
      } catch {
        // The group is already gone.
      }
    }
    await write(path, "freezer.state", "THAWED").catch(() => undefined);
    await sleep(REMOVE_PAUSE_MS);
  }
}

async function removeGroup(path: string): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      await rmdir(path);
      return;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === "ENOENT") return;
      // Processes leave their group a little after their exit is visible.
      if (code !== "EBUSY" || attempt === REMOVE_ATTEMPTS) throw error;
      await sleep(REMOVE_PAUSE_MS);
    }
  }
}

interface GroupMount {
  readonly version: 1 | 2;
  readonly path: string;
  readonly root: string;
  readonly controllers: readonly string[];
}

function parseMounts(text: string): GroupMount[] {
  return text.split("\n").flatMap((line) => {
    const [left = "", right = ""] = line.split(" - ");
    const [, , , root = "", path = ""] = left.split(" ");
    const [type, , options = ""] = right.split(" ");
    if (type !== "cgroup" && type !== "cgroup2") return [];
    return [{ version: type === "cgroup2" ? 2 : 1, path, root, controllers: options.split(",") }];
  });
}

/** Group of this process by controller; that of version 2 under the empty name. */
function parseMembership(text: string): Map<string, string> {
  const groups = new Map<string, string>();
  for (const line of text.split("\n")) {
    const [, controllers, ...path] = line.split(":");
    if (controllers === undefined) continue;
    for (const controller of controllers.split(",")) groups.set(controller, path.join(":"));
  }
  return groups;
}

/** Parent of this installation's groups, with its controllers. */
async function openUnified(
  mount: string,
  own: string,
  name: string,
): Promise<{ path: string; controllers: Controller[] }> {
  // A server in a delegated group stays in a child beside the sandboxes' groups: a group that delegates controllers
  // cannot hold processes.
  const delegated = basename(own) === SUPERVISOR ? dirname(own) : own;
  const isRoot = process.geteuid?.() === 0;
  // systemd before 254 starts a service in its top group. Groups of sandboxes there would keep the service from
  // restarting, because a group that delegates controllers takes no process. Root uses the top of the hierarchy then,
  // like Docker.
  const isDelegated = isRoot ? own !== delegated && delegated.endsWith(".service") : true;
  const top = isDelegated ? join(mount, delegated) : mount;
  // The top of a container's namespace is an ordinary group of the host; the real root has no cgroup.type.
  const isContainer = own === "/" && (await read(mount, "cgroup.type")) !== undefined;
  if (isContainer || (isDelegated && own === delegated && (await canAccess(top, constants.W_OK))))
    await moveAside(top);
  const path = join(top, name);
  const wanted = ["memory", "cpu", "pids"] as const;
  const usable: Controller[] = [];
  if (!(await makeGroup(path))) return { path, controllers: [] };
  for (const controller of wanted) {
    try {
      for (const group of [top, path]) await enable(group, controller);
      usable.push(controller);
    } catch {
      // The server may not delegate it.
    }
  }
  return { path, controllers: [...usable, "freezer"] };
}

async function enable(path: string, controller: string): Promise<void> {
  const active = (await read(path, "cgroup.subtree_control"))?.split(/\s+/) ?? [];
  if (!active.includes(controller)) await write(path, "cgroup.subtree_control", `+${controller}`);
}

async function moveAside(path: string): Promise<void> {
  const aside = join(path, SUPERVISOR);
  await mkdir(aside, { recursive: true });
  for (const pid of await membersOf(path)) await write(aside, "cgroup.procs", pid).catch(() => undefined);
}

async function makeGroup(path: string): Promise<boolean> {
  try {
    await mkdir(path, { recursive: true });
    await access(join(path, "cgroup.procs"), constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

async function write(directory: string, file: string, text: string): Promise<void> {
  await writeFile(join(directory, file), text, { flag: "r+" });
}

async function read(directory: string | undefined, file: string): Promise<string | undefined> {
  return directory === undefined ? undefined : readFile(join(directory, file), "utf8").catch(() => undefined);
}

function fileAtOnce(directory: string | undefined, file: string): string | undefined {
  return directory === undefined ? undefined : readAtOnce(join(directory, file));
}

function number(text: string | undefined, divisor = 1): number | undefined {
  return text === undefined ? undefined : Number(text) / divisor;
}

/** The number after a word at the start of a line. */
function field(text: string | undefined, name: string): number | undefined {
  const line = text?.split("\n").find((each) => each.startsWith(`${name} `));
  return line === undefined ? undefined : Number(line.slice(name.length + 1));
}
