import { type LiveSandbox, type Sandboxes, SandboxError } from "@coppice/core";

export const DEBUG_SANDBOX_ID = "debug";

/** The one sandbox that all clients in debug mode share: open, without an end, created at the first request. */
export class DebugSandbox {
  readonly #sandboxes: Sandboxes;
  readonly #template: string;
  #making: Promise<LiveSandbox> | undefined;

  constructor(sandboxes: Sandboxes, template: string) {
    this.#sandboxes = sandboxes;
    this.#template = template;
  }

  /**
   * The running sandbox. Concurrent callers share one creation; after a kill or a failure the next call creates
   * another.
   * @throws the errors of `Sandboxes.create`.
   */
  get(): Promise<LiveSandbox> {
    this.#making ??= this.#find().finally(() => {
      this.#making = undefined;
    });
    return this.#making;
  }

  async #find(): Promise<LiveSandbox> {
    const found = this.#sandboxes.find(DEBUG_SANDBOX_ID);
    if (found?.isReachable === true) return found;
    if (found === undefined) await this.#untilGone();
    return this.#sandboxes.create({
      id: DEBUG_SANDBOX_ID,
      template: this.#template,
      timeoutMs: undefined,
      secure: false,
    });
  }

  /** A sandbox that is being killed keeps its id until nothing of it is left; killing it again waits for that. */
  async #untilGone(): Promise<void> {
    try {
      await this.#sandboxes.kill(DEBUG_SANDBOX_ID);
    } catch (error) {
      if (!(error instanceof SandboxError && error.code === "not_found")) throw error;
    }
  }
}
