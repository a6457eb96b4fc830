import { Registry } from "prom-client";
import type { z } from "zod";
import type { Clock } from "../../kernel/clock.js";
import { createLogger } from "../../observe/logger.js";
import { fakeClock, type FakeClock } from "../../testing/fake-clock.js";
import { MemoryBackend } from "../../testing/memory-backend.js";
import { createSandboxDomain, type SandboxDomain } from "../domain.js";
import type { SandboxEvent } from "../model/sandbox-event.js";
import { sandboxesConfig } from "../model/sandboxes-config.js";
import { FragileLedger } from "./start-domain.js";

/** State that outlives servers: the ledger, the backend, and time. */
export class World {
  readonly clock: FakeClock = fakeClock();
  readonly ledger = new FragileLedger();
  readonly backend = new MemoryBackend({
    onProvision: () => this.#mayFail(),
    onRestrict: () => this.#mayFail(),
    pausing: { onPause: () => this.#mayFail(), onResume: () => this.#mayFail() },
    stopping: { onStop: () => this.#mayFail(), onStart: () => this.#mayFail() },
    snapshots: { onTake: () => this.#mayFail() },
    volumes: { onMake: () => this.#mayFail() },
    programs: { ready: () => Promise.resolve(0) },
  });
  /** True: every operation of the backend but `destroy` fails. */
  isFaulty = false;
  /** Delivered events by id, in order. */
  readonly told = new Map<string, SandboxEvent>();

  /** Creates a server on this world, not started yet. The one before has to have crashed or stopped. */
  prepare(settings: z.input<typeof sandboxesConfig> = {}): CrashingServer {
    return new CrashingServer(this, settings);
  }

  async start(settings?: z.input<typeof sandboxesConfig>): Promise<CrashingServer> {
    const server = this.prepare(settings);
    await server.domain.start();
    server.domain.tellEvents();
    return server;
  }

  #mayFail(): void {
    if (this.isFaulty) throw new Error("a fault of the backend");
  }
}

/** A server that can crash before and after every call of its ledger and its backend. */
export class CrashingServer {
  readonly domain: SandboxDomain;
  readonly metrics = new Registry();
  readonly crashed: Promise<void>;
  readonly #die: () => void;
  #isDead = false;
  #stepsLeft = Infinity;

  constructor(world: World, settings: z.input<typeof sandboxesConfig>) {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.crashed = promise;
    this.#die = resolve;
    const step = (): Promise<void> => this.#step();
    const clock: Clock = {
      now: () => world.clock.now(),
      after: (delayMs, callback) => world.clock.after(delayMs, () => this.#isDead || callback()),
    };
    this.domain = createSandboxDomain({
      config: sandboxesConfig.parse(settings),
      dataDir: "unused",
      clock,
      log: createLogger("silent"),
      metrics: this.metrics,
      ledger: () => interrupted(world.ledger, step),
    });
    this.domain.events.add(async (events) => {
      await step();
      for (const event of events) world.told.set(event.id, event);
      await step();
    });
    this.domain.backends.add(interrupted(world.backend, step));
  }

  get isDead(): boolean {
    return this.#isDead;
  }

  crashAt(step: number): void {
    this.#stepsLeft = step;
  }

  crash(): void {
    this.#isDead = true;
    this.#die();
  }

  /** Resolves with the outcome of `work`, or with `crashed`. */
  async attempt(work: Promise<unknown>): Promise<"done" | "failed" | "crashed"> {
    const ended = work.then(
      () => "done" as const,
      () => "failed" as const,
    );
    return Promise.race([this.crashed.then(() => "crashed" as const), ended]);
  }

  #step(): Promise<void> {
    this.#stepsLeft -= 1;
    if (this.#stepsLeft === 0) this.crash();
    // A dead server's calls never return.
    return this.#isDead ? new Promise(() => {}) : Promise.resolve();
  }
}

/** A proxy that adds a step before and after every method call of an object and the objects in it. */
function interrupted<T extends object>(target: T, step: () => Promise<void>): T {
  const wrap = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(wrap);
    if (typeof value !== "object" || value === null || value instanceof Map) return value;
    return "destroy" in value ? interrupted(value, step) : value;
  };
  return new Proxy(target, {
    get(_target, name) {
      const value: unknown = Reflect.get(target, name, target);
      if (value instanceof Promise) return value;
      if (typeof value === "object" && value !== null) return interrupted(value, step);
      if (typeof value !== "function") return value;
      return async (...parameters: unknown[]) => {
        await step();
        const result: unknown = await Reflect.apply(value, target, parameters);
        await step();
        return wrap(result);
      };
    },
  });
}
