import { type Clock, type LiveSandbox, type Logger, messageOf, type Sandboxes } from "@coppice/core";
import type { CommandsV1Config } from "../commands-v1-config.js";
import { stopSandbox, type NamedSandboxes } from "./named-sandboxes.js";
import { MADE_HERE } from "./create-body.js";
import type { CommandsV1Store, NamedSandbox } from "../store/commands-v1-store.js";

interface SweeperOptions {
  readonly store: () => CommandsV1Store["sandboxes"];
  readonly named: NamedSandboxes;
  readonly sandboxes: Sandboxes;
  readonly clock: Clock;
  readonly log: Logger;
  readonly config: CommandsV1Config;
  /** What else is done at each look. */
  readonly tasks: readonly (() => void | Promise<void>)[];
}

/** Stops idle sandboxes, deletes overdue ones, and forgets those that are gone. */
export class Sweeper {
  readonly #options: SweeperOptions;
  /** Tasks that an earlier look has begun, and sandboxes that it has: one that hangs holds no other. */
  readonly #busy = new Set<unknown>();
  #cancel = (): void => undefined;

  constructor(options: SweeperOptions) {
    this.#options = options;
  }

  start(): void {
    const { clock, config } = this.#options;
    this.#cancel = clock.after(config.checkInterval, () => {
      void this.check();
      this.start();
    });
  }

  stop(): void {
    this.start = () => undefined;
    this.#cancel();
  }

  /** Looks once at every sandbox. Never rejects. */
  async check(): Promise<void> {
    const { store, tasks, sandboxes } = this.#options;
    const checkAll = async (): Promise<void> => {
      const known = store().all();
      await Promise.all(
        known.map((named) => this.#once(named.id, () => this.#checkOne(named, sandboxes.find(named.id)))),
      );
    };
    await Promise.all([
      ...tasks.map((task) => this.#once(task, task)),
      this.#guard(() => this.#nameMissing()),
      this.#guard(checkAll),
    ]);
  }

  async #once(what: unknown, task: () => void | Promise<void>): Promise<void> {
    if (this.#busy.has(what)) return;
    this.#busy.add(what);
    await this.#guard(task);
    this.#busy.delete(what);
  }

  async #guard(task: () => void | Promise<void>): Promise<void> {
    try {
      await task();
    } catch (error) {
      this.#options.log.error({ err: error }, "a look at the sandboxes failed, and is tried again");
    }
  }

  async #checkOne(known: NamedSandbox, sandbox: LiveSandbox | undefined): Promise<void> {
    const { named, sandboxes, clock, log } = this.#options;
    const { id, tier, autoStopMs, deadlineMs = Infinity } = known;
    const now = clock.now();
    if (sandbox === undefined) {
      await this.#forget(known);
      return;
    }
    try {
      if (deadlineMs <= now) await sandboxes.kill(id, "timed out");
      else if (
        sandbox.record.state === "running" &&
        autoStopMs > 0 &&
        named.idleSinceMs(sandbox) + autoStopMs <= now
      ) {
        log.info({ sandbox: id, tier }, "an idle sandbox stops");
        await stopSandbox(sandboxes, sandbox, tier);
      }
    } catch (error) {
      log.warn({ sandbox: id, reason: messageOf(error) }, "an idle or overdue sandbox is tried again later");
    }
  }

  /** A sandbox without a record may belong to a backend that could not start: it is forgotten after its deadline. */
  async #forget({ id, deadlineMs = 0 }: NamedSandbox): Promise<void> {
    const { store, sandboxes, clock } = this.#options;
    const isEnded = (await sandboxes.endOf(id)) !== undefined;
    if (isEnded || (deadlineMs <= clock.now() && !(await sandboxes.remembers(id)))) store().remove({ id });
  }

  /** A server that was killed during a creation has left a sandbox without a deadline. */
  #nameMissing(): void {
    const { store, named, sandboxes, clock, config } = this.#options;
    for (const sandbox of sandboxes.list()) {
      const { id, metadata, timeoutMs, state, startedAtMs } = sandbox.record;
      const isMadeHere = metadata["created-by"] === MADE_HERE["created-by"] && timeoutMs === undefined;
      if (!isMadeHere || state === "creating" || store().has({ id })) continue;
      // A creation that is under way writes its name itself.
      if (startedAtMs + config.checkInterval > clock.now()) continue;
      const deadlineMs = clock.now() + config.autoDelete;
      store().put({ ...named.describe(sandbox), autoStopMs: config.autoStop, deadlineMs });
    }
  }
}
