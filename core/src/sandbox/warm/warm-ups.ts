import { createToken } from "../../kernel/token.js";
import type { LiveSandbox } from "../model/live-sandbox.js";

/** A plugin's preparations for sandboxes of a warm pool. A failure costs that sandbox, never its later creator. */
export interface WarmUp {
  /**
   * Starts early what the first user would wait for. The sandbox has no creator yet; its `record` has its final id,
   * template and limits, and no options of a creator.
   */
  prepare(sandbox: LiveSandbox, signal: AbortSignal): Promise<void>;
  /** Adapts running programs to the creator's options, `record.environment` above all. The creator waits for it. */
  handOut(sandbox: LiveSandbox, signal: AbortSignal): Promise<void>;
}

/** Warm-ups of all plugins: a plugin adds its own during set-up. */
export interface WarmUps {
  add(warmUp: WarmUp): void;
}

export const WarmUps = createToken<WarmUps>("warm-ups");

/** The warm-ups of this server, run in parallel. */
export class AddedWarmUps implements WarmUps {
  readonly #added: WarmUp[] = [];

  add(warmUp: WarmUp): void {
    this.#added.push(warmUp);
  }

  /** Runs one step of all. @throws the first error, after all have settled. */
  async run(step: keyof WarmUp, sandbox: LiveSandbox, signal: AbortSignal): Promise<void> {
    const results = await Promise.allSettled(this.#added.map((warmUp) => warmUp[step](sandbox, signal)));
    const failure = results.find(({ status }) => status === "rejected");
    if (failure?.status === "rejected") throw failure.reason;
  }
}
