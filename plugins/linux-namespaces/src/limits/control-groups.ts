import { access, constants, mkdir, readFile, readdir, rmdir, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError, messageOf } from "@coppice/core";

/** Controllers that measure and limit a sandbox. `cpuacct` is part of `cpu` in version 2. */
export type Controller = "memory" | "cpu" | "cpuacct" | "pids" | "freezer";
const CONTROLLERS: readonly Controller[] = ["memory", "cpu", "cpuacct", "pids", "freezer"];

/** Where one controller is to be had on this host. */
interface Hierarchy {
  readonly version: 1 | 2;
  /** Directory in which this installation makes its groups. */
  readonly parent: string;
}

/** The directories of one sandbox, by controller; the same one for all that are of version 2. */
export interface GroupRecord {
  readonly [controller: string]: { readonly version: 1 | 2; readonly path: string };
}

export interface GroupLimits {
  readonly memoryMiB: number;
  readonly cpuCount: number;
  readonly processes: number;
}

export interface GroupUsage {
  /** Microseconds of all CPUs together. */
  readonly cpuMicros: number | undefined;
  readonly memoryBytes: number | undefined;
  readonly memoryCacheBytes: number | undefined;
  /** Processes that the kernel has ended because the memory limit was reached. */
  readonly outOfMemoryKills: number;
}

const CPU_PERIOD_MICROS = 100_000;
const MEBIBYTE = 2 ** 20;
/** Where the server itself is, in a group that it was handed: what the systemd unit names, too. */
const SUPERVISOR = "supervisor";
const REMOVE_ATTEMPTS = 50;
const REMOVE_PAUSE_MS = 10;
/** Processes that wait for a busy disk are frozen when they have what they wait for. */
const FREEZE_TIMEOUT_MS = 10_000;
const FREEZE_PAUSE_MS = 10;

/** The control groups of this host that a server may use: version 2 where it can, else version 1, one by one. */
export class ControlGroups {
  readonly #hierarchies: ReadonlyMap<Controller, Hierarchy>;

  private constructor(hierarchies: ReadonlyMap<Controller, Hierarchy>) {
    this.#hierarchies = hierarchies;
  }

  /**
   * Finds what is mounted and can be written to.
   * @param name of the directory below which this installation makes its groups.
   */
  static async find(name: string): Promise<ControlGroups> {
    const own = parseMembership(await readFile("/proc/self/cgroup", "utf8").catch(() => ""));
    const mounts = parseMounts(await readFile("/proc/self/mountinfo", "utf8").catch(() => ""));
    const found = new Map<Controller, Hierarchy>();
    const unified = mounts.find(({ version }) => version === 2);
    if (unified !== undefined) {
      const parent = await openUnified(unified.path, own.get("") ?? "/", name).catch(() => undefined);
      for (const controller of parent?.controllers ?? []) {
        found.set(controller, { version: 2, parent: parent?.path ?? "" });
      }
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

  /** Which controllers there are, and of which version. */
  get found(): ReadonlyMap<Controller, 1 | 2> {
    return new Map([...this.#hierarchies].map(([controller, { version }]) => [controller, version]));
  }

  has(controller: Controller): boolean {
    return this.#hierarchies.has(controller);
  }

  /** Makes the groups of a sandbox; nothing is in them yet. */
  async create(id: string, limits: GroupLimits): Promise<ControlGroup> {
    const record: Record<string, GroupRecord[string]> = {};
    for (const [controller, { version, parent }] of this.#hierarchies) {
      record[controller] = { version, path: join(parent, id) };
    }
    const group = new ControlGroup(record);
    try {
      for (const path of group.paths) await mkdir(path, { mode: 0o755 });
      await group.limit(limits);
      return group;
    } catch (error) {
      await group.remove();
      throw new SandboxError("internal_error", `cannot make control groups: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }

  /** Removes the groups of sandboxes that are not among the known ones. */
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

  /** Removes what is left when no sandbox is. */
  async close(): Promise<void> {
    for (const { parent } of this.#hierarchies.values()) await rmdir(parent).catch(() => undefined);
  }
}

/** The control groups of one sandbox. */
export class ControlGroup {
  readonly record: GroupRecord;

  constructor(record: GroupRecord) {
    this.record = record;
  }

  get paths(): readonly string[] {
    return [...new Set(Object.values(this.record).map(({ path }) => path))];
  }

  /** Where a process has to start; empty where there is no version 2. */
  get unifiedPath(): string {
    return Object.values(this.record).find(({ version }) => version === 2)?.path ?? "";
  }

  /**
   * Files of version 1 that take in the thread that writes to them. To move a whole process, the kernel
   * would stop all others for some milliseconds.
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

  /** File that thaws killed processes which a version 1 freezer still holds. */
  get thawFile(): string | undefined {
    const freezer = this.record["freezer"];
    return freezer?.version === 1 ? join(freezer.path, "freezer.state") : undefined;
  }

  /** @throws SandboxError failed_precondition when more memory is in use. */
  async limit(limits: GroupLimits): Promise<void> {
    await this.#limit(limits).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EBUSY") throw error;
      throw new SandboxError("limits_below_use", "the sandbox uses more memory than that", {
        cause: error,
      });
    });
  }

  async #limit(limits: GroupLimits): Promise<void> {
    const { memory, cpu, pids } = this.record;
    const memoryBytes = String(limits.memoryMiB * MEBIBYTE);
    const quota = String(Math.max(1_000, Math.round(limits.cpuCount * CPU_PERIOD_MICROS)));
    if (memory?.version === 2) {
      await write(memory.path, "memory.max", memoryBytes);
      await write(memory.path, "memory.swap.max", "0").catch(ignoreMissing);
    } else if (memory !== undefined) {
      await limitMemoryOfVersion1(memory.path, memoryBytes);
    }
    if (cpu?.version === 2) {
      await write(cpu.path, "cpu.max", `${quota} ${CPU_PERIOD_MICROS}`);
    } else if (cpu !== undefined) {
      await write(cpu.path, "cpu.cfs_period_us", String(CPU_PERIOD_MICROS));
      await write(cpu.path, "cpu.cfs_quota_us", quota);
    }
    if (pids !== undefined) await write(pids.path, "pids.max", String(limits.processes));
  }

  async usage(): Promise<GroupUsage> {
    const { memory, cpu, cpuacct } = this.record;
    const [cpuText, memoryText, memoryStatistics, memoryEvents] = await Promise.all([
      cpu?.version === 2 ? read(cpu.path, "cpu.stat") : read(cpuacct?.path, "cpuacct.usage"),
      read(memory?.path, memory?.version === 2 ? "memory.current" : "memory.usage_in_bytes"),
      read(memory?.path, "memory.stat"),
      read(memory?.path, memory?.version === 2 ? "memory.events" : "memory.oom_control"),
    ]);
    const cpuMicros = cpu?.version === 2 ? field(cpuText, "usage_usec") : scaled(number(cpuText), 1_000);
    return {
      cpuMicros,
      memoryBytes: number(memoryText),
      memoryCacheBytes: field(memoryStatistics, memory?.version === 2 ? "file" : "total_cache"),
      outOfMemoryKills: field(memoryEvents, "oom_kill") ?? 0,
    };
  }

  async freeze(): Promise<void> {
    await this.#setFrozen(true);
  }

  async thaw(): Promise<void> {
    await this.#setFrozen(false);
  }

  /** Removes the groups, which have to be empty or about to be. Missing ones are fine. */
  async remove(): Promise<void> {
    for (const path of this.paths) await removeGroup(path);
  }

  async #setFrozen(isFrozen: boolean): Promise<void> {
    const freezer = this.record["freezer"];
    if (freezer === undefined) throw new SandboxError("freezer_missing", "there is no freezer");
    const [file, text] =
      freezer.version === 2
        ? ["cgroup.freeze", isFrozen ? "1" : "0"]
        : ["freezer.state", isFrozen ? "FROZEN" : "THAWED"];
    await write(freezer.path, file, text);
    const isSettled = async (): Promise<boolean> => {
      const state = await read(freezer.path, freezer.version === 2 ? "cgroup.events" : "freezer.state");
      // Its sandbox ended meanwhile, and the group with it.
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

async function limitMemoryOfVersion1(path: string, bytes: string): Promise<void> {
  // With swap can never be less than without: up it goes first, down it goes last. It is only there where
  // swap is accounted; else what is swapped out is not limited.
  const withSwap = (): Promise<void> =>
    write(path, "memory.memsw.limit_in_bytes", bytes).catch(ignoreMissing);
  const isRaised = Number(bytes) > (number(await read(path, "memory.limit_in_bytes")) ?? 0);
  if (isRaised) await withSwap();
  await write(path, "memory.limit_in_bytes", bytes);
  if (!isRaised) await withSwap();
}

/** Also ends what is still in it: whatever made it is gone. */
async function endMembers(path: string): Promise<void> {
  await write(path, "cgroup.kill", "1").catch(() => undefined);
  for (let attempt = 0; attempt < REMOVE_ATTEMPTS; attempt++) {
    const members = (await read(path, "cgroup.procs"))?.split("\n").filter(Boolean) ?? [];
    if (members.length === 0) return;
    for (const pid of members) {
      try {
        process.kill(Number(pid), "SIGKILL");
      } catch {
        // Gone by itself.
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
      // Processes leave their group a little after they were seen to be gone.
      if (code !== "EBUSY" || attempt === REMOVE_ATTEMPTS) throw error;
      await sleep(REMOVE_PAUSE_MS);
    }
  }
}

interface GroupMount {
  readonly version: 1 | 2;
  readonly path: string;
  /** Which of its groups is mounted there. */
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

/** Path of this process's group by controller; that of version 2 under the empty name. */
function parseMembership(text: string): Map<string, string> {
  const groups = new Map<string, string>();
  for (const line of text.split("\n")) {
    const [, controllers, ...path] = line.split(":");
    if (controllers === undefined) continue;
    for (const controller of controllers.split(",")) groups.set(controller, path.join(":"));
  }
  return groups;
}

/** The parent of this installation's groups, and what it can control there. */
async function openUnified(
  mount: string,
  own: string,
  name: string,
): Promise<{ path: string; controllers: Controller[] }> {
  // Who was handed a group stays in there: in a group beside those of the sandboxes, because a group that
  // hands out controllers cannot hold processes itself.
  const delegated = basename(own) === SUPERVISOR ? dirname(own) : own;
  const isRoot = process.geteuid?.() === 0;
  // In the group of a service itself, as systemd before 254 starts it, groups of sandboxes would keep the service from
  // starting again: a group that hands out controllers takes no process. Root makes them at the top then, like Docker.
  const isDelegated = isRoot ? own !== delegated && delegated.endsWith(".service") : true;
  const top = isDelegated ? join(mount, delegated) : mount;
  // The top of a container's own hierarchy is an ordinary group of the host; the true one has no type.
  const isContainer = own === "/" && (await read(mount, "cgroup.type")) !== undefined;
  if (isContainer || (isDelegated && own === delegated && (await canMakeGroups(top)))) await moveAside(top);
  const path = join(top, name);
  const wanted = ["memory", "cpu", "pids"] as const;
  const usable: Controller[] = [];
  if (!(await makeGroup(path))) return { path, controllers: [] };
  for (const controller of wanted) {
    const isOn = await enable(top, controller)
      .then(() => enable(path, controller))
      .then(
        () => true,
        () => false,
      );
    if (isOn) usable.push(controller);
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
  for (const pid of (await read(path, "cgroup.procs"))?.split("\n").filter(Boolean) ?? []) {
    await write(aside, "cgroup.procs", pid).catch(() => undefined);
  }
}

async function canMakeGroups(path: string): Promise<boolean> {
  return access(path, constants.W_OK).then(
    () => true,
    () => false,
  );
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

function number(text: string | undefined): number | undefined {
  return text === undefined ? undefined : Number(text);
}

function scaled(value: number | undefined, divisor: number): number | undefined {
  return value === undefined ? undefined : value / divisor;
}

/** The number behind a word at the start of a line. */
function field(text: string | undefined, name: string): number | undefined {
  const line = text?.split("\n").find((each) => each.startsWith(`${name} `));
  return line === undefined ? undefined : Number(line.slice(name.length + 1));
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== "ENOENT") throw error;
}
