import assert from "node:assert/strict";
import { it } from "node:test";
import { SeededRandom } from "../../testing/seeded-random.js";
import { isDeepStrictEqual } from "node:util";
import { ALL_TRAFFIC, type NetworkPolicy } from "../contract/egress-rules.js";
import type { LiveSandbox, OnTimeout, SandboxRecord } from "../model/live-sandbox.js";
import type { SnapshotRecord } from "../model/snapshots.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import { assertAgreement } from "../testing/assert-agreement.js";
import { type CrashingServer, World } from "../testing/crashing-server.js";
import { base, MINUTE_MS } from "../testing/start-domain.js";

const SEEDS = Number(process.env["COPPICE_MODEL_SEEDS"] ?? 8);
const STEPS = 400;
const FILE = "/home/user/file";
const MOUNT = "/data";
const LIFE_MS = 10 * MINUTE_MS;
const OPEN: NetworkPolicy = { allowInternetAccess: true, egress: undefined };
const POLICIES: readonly NetworkPolicy[] = [
  OPEN,
  { allowInternetAccess: false, egress: undefined },
  { allowInternetAccess: true, egress: { allowOut: ["1.1.1.1"], denyOut: [ALL_TRAFFIC] } },
];
const LIMITS = { maximum: 12, maximumSnapshots: 5, maximumVolumes: 4 };

/** Allowed states of a sandbox. More than one where a crash left the outcome open. */
interface Expected {
  states: ReadonlySet<"running" | "paused" | "gone">;
  readonly onTimeout: OnTimeout;
  content: string;
  /** Allowed network rules. More than one where a crash left the outcome open. */
  policies: readonly NetworkPolicy[];
  /** Name of the volume that is mounted at MOUNT. */
  readonly volume: string | undefined;
}

/** A server on a world, a model of the expected state, and random operations on both. */
class Model {
  readonly #world = new World();
  readonly #random: SeededRandom;
  readonly #sandboxes = new Map<string, Expected>();
  readonly #snapshots = new Map<string, string>();
  /** Names of the listed volumes. */
  readonly #volumes = new Set<string>();
  /** Contents of volumes, also of removed ones that sandboxes still have mounted. */
  readonly #contents = new Map<string, string>();
  #server!: CrashingServer;
  #written = 0;
  readonly counts = { steps: 0, crashes: 0, refusals: 0 };

  constructor(seed: number) {
    this.#random = new SeededRandom(seed);
  }

  async open(): Promise<void> {
    this.#server = await this.#world.start(LIMITS);
  }

  async step(): Promise<void> {
    const actions = [
      () => this.#create(),
      () => this.#create(),
      () => this.#write(),
      () => this.#write(),
      () => this.#kill(),
      () => this.#pause(),
      () => this.#pause(),
      () => this.#resume(),
      () => this.#resume(),
      () => this.#shorten(),
      () => this.#wait(),
      () => this.#take(),
      () => this.#createFromSnapshot(),
      () => this.#removeSnapshot(),
      () => this.#fork(),
      () => this.#restrict(),
      () => this.#restrict(),
      () => this.#createVolume(),
      () => this.#createMounted(),
      () => this.#createMounted(),
      () => this.#writeToVolume(),
      () => this.#writeToVolume(),
      () => this.#removeVolume(),
      () => this.#severalAtOnce(),
      () => this.#crashNow(),
      () => this.#lose(),
      () => this.#loseWhileServed(),
    ];
    if (this.#random.below(12) === 0) this.#server.crashAt(1 + this.#random.below(8));
    await this.#pick(actions)?.();
    // The outbox sends later events here, and may crash doing so.
    if (this.#server.isDead) await this.#restart();
    this.counts.steps += 1;
    await this.check();
  }

  async check(): Promise<void> {
    // The check itself must not crash.
    this.#server.crashAt(Infinity);
    const { sandboxes, snapshots } = this.#server.domain;
    for (const [id, expected] of this.#sandboxes) {
      const state = sandboxes.find(id)?.record.state ?? "gone";
      assert.ok(
        (expected.states as ReadonlySet<string>).has(state),
        `${id} is ${state}, and has to be ${[...expected.states].join(" or ")}`,
      );
      expected.states = new Set([state as "running"]);
      if (state === "gone") this.#sandboxes.delete(id);
      else {
        const { allowInternetAccess, egress } = sandboxes.get(id).record;
        expected.policies = [{ allowInternetAccess, egress }].filter((policy) =>
          expected.policies.some((one) => isDeepStrictEqual(one, policy)),
        );
        assert.equal(expected.policies.length, 1, `${id} may reach ${JSON.stringify(egress)}`);
      }
      if (state !== "running") continue;
      const sandbox = sandboxes.get(id);
      assert.equal(await contentOf(sandbox, FILE), expected.content, id);
      if (expected.volume === undefined) continue;
      const told = await contentOf(sandbox, `${MOUNT}/file`);
      assert.equal(told, this.#contents.get(expected.volume) ?? "", `the volume of ${id}`);
    }
    for (const { record } of sandboxes.list())
      assert.ok(this.#sandboxes.has(record.id), `${record.id} is unknown`);
    const kept = snapshots.of(DEFAULT_TENANT).list();
    assert.deepEqual(kept.map(({ id }) => id).toSorted(), [...this.#snapshots.keys()].toSorted());
    const volumes = this.#volumesOf().list();
    assert.deepEqual(volumes.map(({ id }) => id).toSorted(), [...this.#volumes].toSorted());
    await assertAgreement(this.#world, this.#server);
  }

  async close(): Promise<void> {
    this.#server.crashAt(Infinity);
    for (const id of this.#sandboxes.keys()) await this.#server.domain.sandboxes.kill(id);
    for (const id of this.#snapshots.keys()) await this.#snapshotsOf().remove(id);
    for (const id of this.#volumes) await this.#volumesOf().remove(id);
    this.#volumes.clear();
    this.#sandboxes.clear();
    this.#snapshots.clear();
    await this.check();
    await this.#server.domain.stop();
    assert.deepEqual(this.#world.backend.alive, { sandboxes: 0, processes: 0, connections: 0, openFiles: 0 });
  }

  #snapshotsOf() {
    return this.#server.domain.snapshots.of(DEFAULT_TENANT);
  }

  #volumesOf() {
    return this.#server.domain.volumes.of(DEFAULT_TENANT);
  }

  #pick<T>(from: readonly T[]): T | undefined {
    return from[this.#random.below(from.length)];
  }

  #any(...states: readonly ("running" | "paused")[]): string | undefined {
    const ids = [...this.#sandboxes].filter(
      ([
        ,
        {
          states: [state],
        },
      ]) => states.includes(state as "running"),
    );
    return this.#pick(ids)?.[0];
  }

  /** Does one thing. A crash leaves it done or not; the next server says which. */
  async #do<T>(work: () => Promise<T>, done: (result: T) => void, halfDone?: () => void): Promise<void> {
    let result: { readonly value: T } | undefined;
    const server = this.#server;
    this.#world.isFaulty = this.#random.below(10) === 0;
    const outcome = await server.attempt(work().then((value) => void (result = { value })));
    this.#world.isFaulty = false;
    if (result !== undefined) done(result.value);
    else if (outcome === "failed") this.counts.refusals += 1;
    if (outcome !== "crashed") return;
    if (result === undefined) halfDone?.();
    await this.#restart();
  }

  async #restart(): Promise<void> {
    this.counts.crashes += 1;
    this.#server = await this.#world.start(LIMITS);
    const { sandboxes } = this.#server.domain;
    // A sandbox whose creation was interrupted may exist, complete.
    for (const { record } of sandboxes.list()) {
      if (this.#sandboxes.has(record.id)) continue;
      const isUp = record.state === "running";
      this.#expect(record, isUp ? await contentOf(sandboxes.get(record.id), FILE) : "");
    }
    const kept = this.#snapshotsOf().list();
    const ids = new Set(kept.map(({ id }) => id));
    for (const { id, sandboxId } of kept) {
      if (!this.#snapshots.has(id)) this.#snapshots.set(id, this.#sandboxes.get(sandboxId)?.content ?? "");
    }
    for (const id of this.#snapshots.keys()) if (!ids.has(id)) this.#snapshots.delete(id);
    this.#volumes.clear();
    for (const { id } of this.#volumesOf().list()) this.#volumes.add(id);
  }

  #expect({ id, onTimeout, mounts, ...policy }: SandboxRecord, content: string): void {
    const { allowInternetAccess, egress } = policy;
    this.#sandboxes.set(id, {
      states: new Set(["running"]),
      onTimeout,
      content,
      policies: [{ allowInternetAccess, egress }],
      volume: mounts[0]?.volume,
    });
  }

  #set(id: string | undefined, ...states: readonly ("running" | "paused" | "gone")[]): void {
    const expected = id === undefined ? undefined : this.#sandboxes.get(id);
    if (expected !== undefined) expected.states = new Set(states);
  }

  async #create(): Promise<void> {
    const onTimeout: OnTimeout = this.#random.below(2) === 0 ? "kill" : "pause";
    const keepsMemory = this.#random.below(2) === 0;
    const request = { ...base, timeoutMs: LIFE_MS, onTimeout, keepsMemory };
    await this.#do(
      () => this.#server.domain.sandboxes.create(request),
      ({ record }) => this.#expect(record, ""),
    );
  }

  async #write(): Promise<void> {
    const id = this.#any("running");
    if (id === undefined) return;
    const content = String((this.#written += 1));
    // Past the server: the world's own sandbox, as a program inside would.
    await this.#world.backend.sandboxes.get(id)?.files.write(FILE, bytesOf(content));
    (this.#sandboxes.get(id) as Expected).content = content;
  }

  async #kill(): Promise<void> {
    const id = this.#any("running", "paused");
    if (id === undefined) return;
    const [before = "running"] = this.#sandboxes.get(id)?.states ?? [];
    await this.#do(
      () => this.#server.domain.sandboxes.kill(id),
      () => this.#set(id, "gone"),
      () => this.#set(id, before, "gone"),
    );
  }

  async #pause(): Promise<void> {
    const id = this.#any("running");
    if (id === undefined) return;
    const keepsMemory = this.#random.below(2) === 0;
    await this.#do(
      () => this.#server.domain.sandboxes.pause(id, { keepsMemory }),
      () => this.#set(id, "paused"),
      () => this.#set(id, "running", "paused"),
    );
  }

  async #resume(): Promise<void> {
    const id = this.#any("paused");
    if (id === undefined) return;
    await this.#do(
      () => this.#server.domain.sandboxes.resume(id, LIFE_MS, { keepsMemory: this.#random.below(3) > 0 }),
      () => this.#set(id, "running"),
      () => this.#set(id, "running", "paused"),
    );
  }

  async #shorten(): Promise<void> {
    const id = this.#any("running");
    if (id === undefined) return;
    await this.#do(
      () => this.#server.domain.sandboxes.setTimeout(id, MINUTE_MS),
      () => undefined,
    );
  }

  async #wait(): Promise<void> {
    const server = this.#server;
    server.crashAt(Infinity);
    await this.#world.clock.advance(this.#random.below(3) * MINUTE_MS);
    const now = this.#world.clock.now();
    for (const [id, expected] of this.#sandboxes) {
      if (!expected.states.has("running")) continue;
      const endsAtMs = server.domain.sandboxes.find(id)?.record.endsAtMs;
      const isOver = server.domain.sandboxes.find(id)?.record.state !== "running";
      if (!isOver) assert.ok((endsAtMs ?? 0) > now, `${id} runs after its end`);
      else this.#set(id, expected.onTimeout === "kill" ? "gone" : "paused");
    }
  }

  async #take(): Promise<void> {
    const id = this.#any("running", "paused");
    if (id === undefined) return;
    const { content } = this.#sandboxes.get(id) as Expected;
    await this.#do(
      () => this.#snapshotsOf().take(id, this.#random.below(2) === 0 ? undefined : "name"),
      (record: SnapshotRecord) => this.#snapshots.set(record.id, content),
    );
  }

  async #createFromSnapshot(): Promise<void> {
    const id = this.#pick([...this.#snapshots.keys()]);
    if (id === undefined) return;
    await this.#do(
      () => this.#server.domain.sandboxes.create({ ...base, template: id, timeoutMs: LIFE_MS }),
      ({ record }) => this.#expect(record, this.#snapshots.get(id) ?? ""),
    );
  }

  async #removeSnapshot(): Promise<void> {
    const id = this.#pick([...this.#snapshots.keys()]);
    if (id === undefined) return;
    await this.#do(
      () => this.#snapshotsOf().remove(id),
      () => this.#snapshots.delete(id),
    );
  }

  async #fork(): Promise<void> {
    const id = this.#any("running", "paused");
    if (id === undefined) return;
    const { content } = this.#sandboxes.get(id) as Expected;
    await this.#do(
      () => this.#snapshotsOf().fork(id, { count: 1 + this.#random.below(2), timeoutMs: LIFE_MS }),
      (forked) => {
        for (const one of forked) if ("sandbox" in one) this.#expect(one.sandbox.record, content);
      },
    );
  }

  async #restrict(): Promise<void> {
    const id = this.#any("running");
    const policy = this.#pick(POLICIES);
    if (id === undefined || policy === undefined) return;
    const expected = this.#sandboxes.get(id) as Expected;
    const before = expected.policies;
    await this.#do(
      () => this.#server.domain.sandboxes.setNetworkPolicy(id, policy),
      () => (expected.policies = [policy]),
      () => (expected.policies = [...before, policy]),
    );
  }

  async #createVolume(): Promise<void> {
    const name = `volume${(this.#written += 1)}`;
    // A sandbox that was created without an answer is found after the crash.
    await this.#do(
      () => this.#volumesOf().create({ name }),
      ({ id }) => this.#volumes.add(id),
    );
  }

  async #createMounted(): Promise<void> {
    const volume = this.#pick([...this.#volumes]);
    if (volume === undefined) return;
    const mounts = [{ volume, path: MOUNT }];
    await this.#do(
      () => this.#server.domain.sandboxes.create({ ...base, timeoutMs: LIFE_MS, mounts }),
      ({ record }) => this.#expect(record, ""),
    );
  }

  async #writeToVolume(): Promise<void> {
    const mounted = [...this.#sandboxes].filter(
      ([, { volume, states }]) => volume !== undefined && states.has("running"),
    );
    const [id = "", expected] = this.#pick(mounted) ?? [];
    if (expected?.volume === undefined) return;
    const content = String((this.#written += 1));
    await this.#world.backend.sandboxes.get(id)?.files.write(`${MOUNT}/file`, bytesOf(content));
    this.#contents.set(expected.volume, content);
  }

  async #removeVolume(): Promise<void> {
    const id = this.#pick([...this.#volumes]);
    if (id === undefined || this.#random.below(2) > 0) return;
    await this.#do(
      () => this.#volumesOf().remove(id),
      () => this.#volumes.delete(id),
    );
  }

  /** Whichever operation wins: afterwards server and backend agree, and a kill is final. */
  async #severalAtOnce(): Promise<void> {
    const id = this.#any("running", "paused");
    if (id === undefined) return;
    const { sandboxes } = this.#server.domain;
    this.#server.crashAt(Infinity);
    const policy = this.#pick(POLICIES) ?? OPEN;
    const expected = this.#sandboxes.get(id) as Expected;
    expected.policies = [...expected.policies, policy];
    const calls = [
      () => sandboxes.pause(id),
      () => sandboxes.resume(id, LIFE_MS),
      () => sandboxes.extend(id, LIFE_MS),
      () => this.#snapshotsOf().take(id),
      () => sandboxes.kill(id),
      () => sandboxes.setNetworkPolicy(id, policy),
    ];
    const chosen = calls.filter(() => this.#random.below(3) > 0);
    await Promise.allSettled(chosen.map((call) => call()));
    const isKilled = chosen.includes(calls[4] as () => Promise<void>);
    this.#set(id, ...(isKilled ? (["gone"] as const) : (["running", "paused"] as const)));
    for (const record of this.#snapshotsOf().list()) {
      if (!this.#snapshots.has(record.id)) this.#snapshots.set(record.id, expected.content);
    }
  }

  async #crashNow(): Promise<void> {
    this.#server.crash();
    await this.#restart();
  }

  /** A backend that loses a sandbox while no server looks. */
  async #lose(): Promise<void> {
    const id = this.#any("running", "paused");
    if (id === undefined || this.#random.below(4) > 0) return;
    this.#server.crash();
    this.#world.backend.sandboxes.get(id)?.vanish();
    this.#set(id, "gone");
    await this.#restart();
  }

  /** A backend that loses a sandbox and says so. */
  async #loseWhileServed(): Promise<void> {
    const id = this.#any("running", "paused");
    if (id === undefined || this.#random.below(4) > 0) return;
    this.#world.backend.sandboxes.get(id)?.lose("out of memory");
    await new Promise(setImmediate);
    assert.equal(this.#server.domain.sandboxes.find(id), undefined, `${id} is lost and still found`);
    await this.#do(
      // A kill waits for an end that is under way, or reports that the sandbox is gone.
      () => this.#server.domain.sandboxes.kill(id).catch(() => {}),
      () => this.#set(id, "gone"),
      () => this.#set(id, "gone"),
    );
  }
}

async function* bytesOf(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

async function contentOf({ runtime }: LiveSandbox, path: string): Promise<string> {
  const info = await runtime.files.stat(path).catch(() => undefined);
  if (info === undefined) return "";
  await using file = await runtime.files.read(path);
  const parts: Uint8Array[] = [];
  for await (const part of file.content()) parts.push(part);
  return Buffer.concat(parts).toString();
}

for (let seed = 1; seed <= SEEDS; seed += 1) {
  it(`sandboxes, snapshots and volumes are what a model says, through crashes and races (seed ${seed})`, async () => {
    const model = new Model(seed);
    await model.open();
    for (let step = 0; step < STEPS; step += 1) {
      try {
        await model.step();
      } catch (error) {
        throw new Error(`seed ${seed}, step ${step}`, { cause: error });
      }
    }
    await model.close();
    assert.ok(model.counts.crashes > STEPS / 40, `only ${model.counts.crashes} crashes`);
    assert.ok(model.counts.refusals < STEPS / 4, `${model.counts.refusals} refusals`);
  });
}
