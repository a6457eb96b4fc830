import { createHash } from "node:crypto";
import { type LiveSandbox, SandboxError } from "@coppice/core";
import type { Commands, StartCommand, StartedCommand } from "@coppice/plugin-commands";

/** The answer to a start: the same for a repeated one. */
export type Started = Pick<StartedCommand, "id" | "startedAtMs">;

/** Begins the tags of keys: they are neither those of clients nor those of terminals. */
const TAG = "v1-key:";

/**
 * Starts one command for all requests with the same key, also for concurrent ones and after a restart of the server:
 * the key is in the command's tag, which the log keeps.
 */
export class StartOnce {
  readonly #commands: Commands;
  readonly #starting = new Map<string, Promise<Started>>();

  constructor(commands: Commands) {
    this.#commands = commands;
  }

  /** @throws SandboxError already_exists when the key was used for another command; the errors of `Commands.start`. */
  async start(sandbox: LiveSandbox, key: string, request: StartCommand): Promise<Started> {
    const name = JSON.stringify([sandbox.record.id, key]);
    const digest = createHash("sha256").update(JSON.stringify(request)).digest("hex");
    for (let other = this.#starting.get(name); other !== undefined; other = this.#starting.get(name)) {
      await other.catch(() => undefined);
    }
    const starting = this.#findOrStart(sandbox, { ...request, tag: `${TAG}${key} ${digest}` }, key);
    this.#starting.set(name, starting);
    try {
      return await starting;
    } finally {
      this.#starting.delete(name);
    }
  }

  async #findOrStart(sandbox: LiveSandbox, request: StartCommand, key: string): Promise<Started> {
    for await (const command of this.#commands.log(sandbox.record.id).list()) {
      if (command.tag?.startsWith(`${TAG}${key} `) !== true) continue;
      if (command.tag === request.tag) return command;
      throw new SandboxError("idempotency_key_reused", "this Idempotency-Key was used for another command");
    }
    return this.#commands.start(sandbox, request);
  }
}
