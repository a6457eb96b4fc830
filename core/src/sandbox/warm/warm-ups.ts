import { createToken } from "../../kernel/token.js";
import type { LiveSandbox } from "../model/live-sandbox.js";

/** Preparations of plugins for sandboxes of a warm pool. A failure costs that sandbox, never its later creator. */
export interface WarmUp {
  /**
   * Starts early what its first user would wait for. Nobody knows the sandbox yet; its `record` has its final
   * id, template and limits, and nothing of its creator.
   */
  prepare(sandbox: LiveSandbox, signal: AbortSignal): Promise<void>;
  /**
   * Brings what runs in line with its creator's wishes, `record.environment` above all. The creator waits for it.
   */
  handOut(sandbox: LiveSandbox, signal: AbortSignal): Promise<void>;
}

/** Everything that is done to sandboxes of warm pools: a plugin adds its part while it is set up. */
export interface WarmUps {
  add(warmUp: WarmUp): void;
}

export const WarmUps = createToken<WarmUps>("warm-ups");

/** The warm-ups of this server, done at the same time. */
export class AddedWarmUps implements WarmUps {
  readonly #added: WarmUp[] = [];

  add(warmUp: WarmUp): void {
    this.#added.push(warmUp);
  }

  /** @throws what the first one throws, when all have settled. */
  prepare(sandbox: LiveSandbox, signal: AbortSignal): Promise<void> {
    return settled(this.#added.map((warmUp) => warmUp.prepare(sandbox, signal)));
  }

  /** @throws what the first one throws, when all have settled. */
  handOut(sandbox: LiveSandbox, signal: AbortSignal): Promise<void> {
    return settled(this.#added.map((warmUp) => warmUp.handOut(sandbox, signal)));
  }
}

async function settled(work: readonly Promise<void>[]): Promise<void> {
  const failure = (await Promise.allSettled(work)).find(({ status }) => status === "rejected");
  if (failure?.status === "rejected") throw failure.reason;
}
