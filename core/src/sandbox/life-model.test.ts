import assert from "node:assert/strict";
import { test } from "node:test";
import { SeededRandom } from "../testing/seeded-random.js";
import type { LiveSandbox, OnTimeout } from "./live-sandbox.js";
import type { SnapshotRecord } from "./snapshots.js";
import { DEFAULT_TENANT } from "./tenant.js";
import { assertAgreement } from "./testing/assert-agreement.js";
import { type CrashingServer, World } from "./testing/crashing-server.js";
import { base, MINUTE_MS } from "./testing/start-domain.js";

const SEEDS = Number(process.env["COPPICE_MODEL_SEEDS"] ?? 8);
const STEPS = 400;
const FILE = "/home/user/file";
const LIFE_MS = 10 * MINUTE_MS;

/** What a sandbox has to be. More than one state where a crash left open which of two it is. */
interface Expected {
  states: ReadonlySet<"running" | "paused" | "gone">;
  readonly onTimeout: OnTimeout;
  content: string;
}

/** A server on a world, a model of what it has to be like, and random things to do to both. */
class Model {
  readonly #world = new World();
  readonly #random: SeededRandom;
  readonly #sandboxes = new Map<string, Expected>();
  readonly #snapshots = new Map<string, string>();
  #server!: CrashingServer;
  #written = 0;
  readonly counts = { steps: 0, crashes: 0, refusals: 0 };

  constructor(seed: number) {
    this.#random = new SeededRandom(seed);
  }

  async open(): Promise<void> {
    this.#server = await this.#world.start({ maximum: 12, maximumSnapshots: 5 });
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
      () => this.#severalAtOnce(),
      () => this.#crashNow(),
      () => this.#lose(),
    ];
    if (this.#random.below(12) === 0) this.#server.crashAt(1 + this.#random.below(8));
    await this.#pick(actions)?.();
    // It tells of what happened after that, and may crash at it.
    if (this.#server.isDead) await this.#restart();
    this.counts.steps += 1;
    await this.check();
  }

  async check(): Promise<void> {
    // To look is no step in which it might crash.
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
      if (state === "running") assert.equal(await contentOf(sandboxes.get(id)), expected.content, id);
    }
    for (const { record } of sandboxes.list())
      assert.ok(this.#sandboxes.has(record.id), `${record.id} is unknown`);
    const kept = snapshots.of(DEFAULT_TENANT).list();
    assert.deepEqual(kept.map(({ id }) => id).toSorted(), [...this.#snapshots.keys()].toSorted());
    await assertAgreement(this.#world, this.#server);
  }

  async close(): Promise<void> {
    this.#server.crashAt(Infinity);
    for (const id of this.#sandboxes.keys()) await this.#server.domain.sandboxes.kill(id);
    for (const id of this.#snapshots.keys()) await this.#snapshotsOf().remove(id);
    this.#sandboxes.clear();
    this.#snapshots.clear();
    await this.check();
    await this.#server.domain.stop();
    assert.deepEqual(this.#world.backend.alive, { sandboxes: 0, processes: 0, connections: 0, openFiles: 0 });
  }

  #snapshotsOf() {
    return this.#server.domain.snapshots.of(DEFAULT_TENANT);
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
    const outcome = await server.attempt(work().then((value) => void (result = { value })));
    if (result !== undefined) done(result.value);
    else if (outcome === "failed") this.counts.refusals += 1;
    if (outcome !== "crashed") return;
    if (result === undefined) halfDone?.();
    await this.#restart();
  }

  async #restart(): Promise<void> {
    this.counts.crashes += 1;
    this.#server = await this.#world.start({ maximum: 12, maximumSnapshots: 5 });
    const { sandboxes } = this.#server.domain;
    // What a client asked for and never heard of may be there, whole.
    for (const { record } of sandboxes.list()) {
      if (this.#sandboxes.has(record.id)) continue;
      const content = record.state === "running" ? await contentOf(sandboxes.get(record.id)) : "";
      this.#expect(record.id, record.onTimeout, content);
    }
    const kept = this.#snapshotsOf().list();
    const ids = new Set(kept.map(({ id }) => id));
    for (const { id, sandboxId } of kept) {
      if (!this.#snapshots.has(id)) this.#snapshots.set(id, this.#sandboxes.get(sandboxId)?.content ?? "");
    }
    for (const id of this.#snapshots.keys()) if (!ids.has(id)) this.#snapshots.delete(id);
  }

  #expect(id: string, onTimeout: OnTimeout, content: string): void {
    this.#sandboxes.set(id, { states: new Set(["running"]), onTimeout, content });
  }

  #set(id: string | undefined, ...states: readonly ("running" | "paused" | "gone")[]): void {
    const expected = id === undefined ? undefined : this.#sandboxes.get(id);
    if (expected !== undefined) expected.states = new Set(states);
  }

  async #create(): Promise<void> {
    const onTimeout: OnTimeout = this.#random.below(2) === 0 ? "kill" : "pause";
    const request = { ...base, timeoutMs: LIFE_MS, onTimeout };
    await this.#do(
      () => this.#server.domain.sandboxes.create(request),
      ({ record }) => this.#expect(record.id, onTimeout, ""),
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
    await this.#do(
      () => this.#server.domain.sandboxes.pause(id),
      () => this.#set(id, "paused"),
      () => this.#set(id, "running", "paused"),
    );
  }

  async #resume(): Promise<void> {
    const id = this.#any("paused");
    if (id === undefined) return;
    await this.#do(
      () => this.#server.domain.sandboxes.resume(id, LIFE_MS),
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
      ({ record }) => this.#expect(record.id, "kill", this.#snapshots.get(id) ?? ""),
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
    const { content, onTimeout } = this.#sandboxes.get(id) as Expected;
    await this.#do(
      () => this.#snapshotsOf().fork(id, { count: 1 + this.#random.below(2), timeoutMs: LIFE_MS }),
      (forked) => {
        for (const one of forked)
          if ("sandbox" in one) this.#expect(one.sandbox.record.id, onTimeout, content);
      },
    );
  }

  /** Whatever wins: afterwards there is one truth, and a kill is final. */
  async #severalAtOnce(): Promise<void> {
    const id = this.#any("running", "paused");
    if (id === undefined) return;
    const { sandboxes } = this.#server.domain;
    this.#server.crashAt(Infinity);
    const calls = [
      () => sandboxes.pause(id),
      () => sandboxes.resume(id, LIFE_MS),
      () => sandboxes.extend(id, LIFE_MS),
      () => this.#snapshotsOf().take(id),
      () => sandboxes.kill(id),
    ];
    const chosen = calls.filter(() => this.#random.below(3) > 0);
    await Promise.allSettled(chosen.map((call) => call()));
    const isKilled = chosen.includes(calls[4] as () => Promise<void>);
    this.#set(id, ...(isKilled ? (["gone"] as const) : (["running", "paused"] as const)));
    const { content } = this.#sandboxes.get(id) as Expected;
    for (const record of this.#snapshotsOf().list()) {
      if (!this.#snapshots.has(record.id)) this.#snapshots.set(record.id, content);
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
}

async function* bytesOf(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

async function contentOf({ runtime }: LiveSandbox): Promise<string> {
  const info = await runtime.files.stat(FILE).catch(() => undefined);
  if (info === undefined) return "";
  await using file = await runtime.files.read(FILE);
  const parts: Uint8Array[] = [];
  for await (const part of file.content()) parts.push(part);
  return Buffer.concat(parts).toString();
}

for (let seed = 1; seed <= SEEDS; seed += 1) {
  void test(`sandboxes and snapshots are what a model says, through crashes and races (seed ${seed})`, async () => {
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
