import { setTimeout as pause } from "node:timers/promises";
import { SeededRandom } from "@coppice/core/testing";
import type { History } from "../history/history.js";
import type { Action } from "../history/operation.js";
import type { FaultedFleet } from "../world/faulted-fleet.js";
import { Client, type Told } from "./client.js";

const CLIENTS = 3;
/** Sandboxes that clients keep running. */
const WANTED = 6;
const LEAST_PAUSE_MS = 20;
const MOST_PAUSE_MS = 100;

/** Clients that use the sandboxes of a fleet through all of its servers, and write down what they are told. */
export class Load {
  /** Sandboxes that clients know, and whether one of them was told that it has ended. */
  readonly #known = new Map<string, "running" | "ended">();
  readonly #clients: readonly Client[];
  readonly #history: History;
  readonly #failures = new Map<string, number>();
  #made = 0;
  #isStopped = true;
  #loops: Promise<unknown> = Promise.resolve();

  constructor(fleet: FaultedFleet, history: History) {
    this.#clients = fleet.nodes.map(({ url }) => new Client(url));
    this.#history = history;
  }

  /** Answers that told nothing, with their numbers. */
  get failures(): ReadonlyMap<string, number> {
    return this.#failures;
  }

  get running(): readonly string[] {
    return [...this.#known].flatMap(([id, state]) => (state === "running" ? [id] : []));
  }

  get ended(): readonly string[] {
    return [...this.#known].flatMap(([id, state]) => (state === "ended" ? [id] : []));
  }

  knows(id: string): boolean {
    return this.#known.has(id);
  }

  /** Somebody saw between two moments that a sandbox is lost. Clients go on asking for it, as for all that ended. */
  sawLost(id: string, by: string, startMs: number): void {
    this.#history.answered(id, { action: { kind: "gone" }, by, startMs });
    this.#known.set(id, "ended");
  }

  /** Tries to use a sandbox through all servers. Resolves when all have answered, or never will. */
  async tryEverywhere(id: string): Promise<void> {
    const tries = this.#clients.map((client, index) =>
      this.#note({ id, by: `a try at node${index}` }, incremented, () => client.increment(id)),
    );
    await Promise.all(tries);
  }

  /** Reads a counter through a server. @returns why it is not known whether there is one; undefined when it is */
  async read(id: string, index: number): Promise<string | undefined> {
    const client = this.#clients[index] as Client;
    const told = await this.#note({ id, by: `reader at node${index}` }, countOf, () => client.read(id));
    return told.is === "unknown" ? told.why : undefined;
  }

  /** Asks for all that run as far as clients know: some may have ended unseen. */
  async learnEnds(): Promise<void> {
    for (const id of this.running) {
      const [client] = this.#clients;
      if (client !== undefined)
        await this.#note(
          { id, by: "at the end" },
          () => ({ kind: "there" }),
          () => client.look(id),
        );
    }
  }

  /** Clients ask for those no longer that ended. */
  forgetEnded(): void {
    for (const id of this.ended) {
      this.#known.delete(id);
      this.#history.forget(id);
    }
  }

  start(seed: number): void {
    this.#isStopped = false;
    const randoms = Array.from({ length: CLIENTS }, (_, index) => new SeededRandom(seed * CLIENTS + index));
    this.#loops = Promise.all(randoms.map((random, index) => this.#live(`client ${index}`, random)));
  }

  /** Resolves when no request is under way. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#loops;
  }

  /** Makes as many sandboxes as clients want, while nothing is wrong with the fleet. */
  async fill(seed: number): Promise<void> {
    const random = new SeededRandom(seed);
    for (let attempt = 0; this.running.length < WANTED && attempt < 4 * WANTED; attempt += 1)
      await this.#create("fill", random);
  }

  async #live(by: string, random: SeededRandom): Promise<void> {
    while (!this.#isStopped) {
      await this.#doSomething(by, random);
      await pause(LEAST_PAUSE_MS + random.below(MOST_PAUSE_MS - LEAST_PAUSE_MS));
    }
  }

  async #doSomething(by: string, random: SeededRandom): Promise<unknown> {
    const { running, ended } = this;
    const ids = ended.length > 0 && (running.length === 0 || random.below(4) === 0) ? ended : running;
    const id = ids[random.below(Math.max(1, ids.length))];
    const chance = random.below(100);
    if (id === undefined || (running.length < WANTED && chance < 20)) return this.#create(by, random);
    if (chance < 10) return this.#list(by, random);
    const index = random.below(this.#clients.length);
    const client = this.#clients[index] as Client;
    const ask = { id, by: `${by} at node${index}` };
    if (chance < 70) return this.#note(ask, incremented, () => client.increment(id));
    if (chance < 80)
      return this.#note(
        ask,
        () => ({ kind: "there" }),
        () => client.look(id),
      );
    if (chance < 90) return this.#note(ask, countOf, () => client.read(id));
    if (chance < 96)
      return this.#note(
        ask,
        () => ({ kind: "there" }),
        () => client.setTimeout(id),
      );
    return this.#note(
      ask,
      () => ({ kind: "kill" }),
      () => client.kill(id),
    );
  }

  /** Asks again through the next server, with the same key, until it is told the sandbox's id. */
  async #create(by: string, random: SeededRandom): Promise<void> {
    const startMs = performance.now();
    const name = `sandbox-${(this.#made += 1)}`;
    const first = random.below(this.#clients.length);
    for (let attempt = 0; attempt < 2 * this.#clients.length; attempt += 1) {
      const client = this.#clients[(first + attempt) % this.#clients.length] as Client;
      const told = await client.create(name);
      if (told.is === "done") {
        this.#history.answered(told.value, { action: { kind: "create" }, by, startMs });
        this.#known.set(told.value, "running");
        return;
      }
      this.#failed("create", told.why);
      if (this.#isStopped && by !== "fill") return;
      await pause(100);
    }
  }

  async #list(by: string, random: SeededRandom): Promise<void> {
    const index = random.below(this.#clients.length);
    const known = [...this.#known.keys()];
    const startMs = performance.now();
    const told = await (this.#clients[index] as Client).list();
    if (told.is !== "done") return this.#failed("list", told.why);
    const { ids, isComplete } = told.value;
    for (const id of known)
      if (ids.has(id) || isComplete) {
        const action = { kind: ids.has(id) ? ("there" as const) : ("gone" as const) };
        this.#history.answered(id, { action, by: `${by} lists at node${index}`, startMs });
      }
  }

  async #note<T>(
    { id, by }: { readonly id: string; readonly by: string },
    actionOf: (value?: T) => Action,
    ask: () => Promise<Told<T>>,
  ): Promise<Told<T>> {
    const startMs = performance.now();
    const told = await ask();
    const { kind } = actionOf();
    if (told.is === "done") {
      this.#history.answered(id, { action: actionOf(told.value), by, startMs });
      if (kind === "kill") this.#known.set(id, "ended");
    } else if (told.is === "gone") {
      this.#history.answered(id, { action: { kind: "gone" }, by, startMs });
      this.#known.set(id, "ended");
    } else {
      this.#failed(kind, told.why);
      // The others change nothing.
      if (kind === "increment" || kind === "kill")
        this.#history.unknown(id, { action: actionOf(), by, startMs });
    }
    return told;
  }

  #failed(what: string, why: string): void {
    const key = `${what}: ${why.replaceAll(/"?[a-z0-9]{20}"?/g, "…").slice(0, 160)}`;
    this.#failures.set(key, (this.#failures.get(key) ?? 0) + 1);
  }
}

function incremented(value?: number): Action {
  return { kind: "increment", ...(value !== undefined && { value }) };
}

function countOf(value = 0): Action {
  return { kind: "read", value };
}
