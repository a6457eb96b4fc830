import { isDeepStrictEqual } from "node:util";
import { messageOf, SandboxError, Semaphore } from "@coppice/core";
import type { Process } from "@coppice/core/backend";
import { type ExecutionEvent, limitOutput, lineEndApart, syntheticError } from "../kernel/execution-event.js";
import type { KernelMetrics, RestartCause } from "../kernel/kernel-metrics.js";
import type { KernelConnection } from "../kernel/kernel-notes.js";
import { dialectOf, resettingOf, settingOf } from "../programs/dialects.js";
import { canGoOnWith, isInstalled } from "../programs/kernel-program.js";
import { KernelStartError } from "../programs/kernel-process.js";
import type { Kernel, KernelExecution } from "../kernel/kernel.js";
import type { KernelObserver, KernelStart } from "../kernel/kernel-surroundings.js";
import { adoptKernel, startKernel } from "../kernel/start-kernel.js";
import type { Zygote } from "../kernel/zygote.js";
import { REASONS } from "../reasons.js";

/** Observes a context across the kernels that replace each other in it. */
export interface ContextObserver extends KernelObserver {
  starting(): void;
  /** A kernel is ready. Its `gone` reports its end. */
  started(kernel: Kernel): void;
  /** The kernel is being replaced at a client's request. */
  restarting(): void;
  removed(): void;
}

/** Dependencies that all kernels of a context share. */
type Surroundings = Omit<KernelStart, "env">;

interface CodeContextOptions extends Omit<Surroundings, "observer" | "onSilent" | "signal"> {
  readonly id: string;
  readonly language: string;
  /** True for the context of its language where a client names none. */
  readonly isDefault: boolean;
  readonly userName: string | undefined;
  /** Returns the complete environment of its kernels; called at each start. */
  readonly environment: () => Readonly<Record<string, string>>;
  readonly zygote: Zygote | undefined;
  /** Limit of executions that wait behind the running one. */
  readonly maxWaiting: number;
  /** Limit of the output of one execution. */
  readonly maxOutputBytes: number;
  readonly metrics: KernelMetrics;
  /** Called when a kernel is ready, which is used after this has resolved, and when it is gone. */
  readonly kernelChanged: () => Promise<void>;
}

/** Codes of a start that failed for the folder that a client asked for. */
const ERRORS_OF_CLIENTS: ReadonlySet<string> = new Set(["invalid_argument", "permission_denied"]);

// A fork takes a tenth of a second; a stopped zygote never answers.
const FORK_TIMEOUT_MS = 5000;

/**
 * An execution environment whose state survives between executions. It keeps its id, directory and environment when its
 * kernel is replaced: a kernel is started at first need, and again after it died.
 */
export class CodeContext {
  readonly id: string;
  readonly language: string;
  readonly cwd: string;
  readonly isDefault: boolean;
  /** Its account, where that is not the account of all kernels. */
  readonly userName: string | undefined;
  readonly #options: CodeContextOptions;
  readonly #turns = new Semaphore();
  readonly #removed = new AbortController();
  #kernel: Promise<Kernel> | undefined;
  #places = 0;
  #observer: ContextObserver | undefined;
  #running: Kernel | undefined;
  /** Settles when the kernel of an earlier server has been taken over, or replaced. Never rejects. */
  adopted: Promise<void> = Promise.resolve();
  #environment: Readonly<Record<string, string>> = {};
  #restartCause: RestartCause | undefined;

  constructor(options: CodeContextOptions) {
    this.id = options.id;
    this.language = options.language;
    this.cwd = options.cwd;
    this.isDefault = options.isDefault;
    this.userName = options.userName;
    this.#options = options;
  }

  /** Waits until a kernel is ready. @throws SandboxError as `startKernel`, or aborted when the context is removed. */
  async ready(): Promise<void> {
    await this.#usableKernel();
  }

  get connection(): KernelConnection | undefined {
    return this.#running?.connection;
  }

  /** Adopts the kernel of an earlier server, before anything else; an unusable one is ended and replaced. */
  adopt(process: Process, connection: KernelConnection): void {
    this.#kernel = this.#started(
      this.#adopt(process, connection).catch((error: unknown) => {
        const fields = { err: error, context: this.id };
        this.#options.log.warn(fields, "kernel could not be taken over and is ended");
        this.#restartCause = "lost";
        return this.#start();
      }),
    );
    const settled = (): void => undefined;
    this.adopted = this.#kernel.then(settled, settled);
  }

  lost(): void {
    this.#options.log.warn({ context: this.id }, "kernel ended while no server ran");
    this.#restartCause = "lost";
  }

  watch(observer: ContextObserver): void {
    this.#observer = observer;
    if (this.#running !== undefined) observer.started(this.#running);
  }

  /** Reserves a place in the queue, before waiting for anything. @throws SandboxError resource_exhausted */
  reserveSlot(): Disposable {
    const { maxWaiting, metrics } = this.#options;
    if (this.#places > maxWaiting) {
      metrics.refused.inc();
      const message = `Context ${this.id} already has ${maxWaiting} executions waiting, which is the limit`;
      throw new SandboxError("execution_limit_reached", message);
    }
    this.#places++;
    return { [Symbol.dispose]: () => void this.#places-- };
  }

  /**
   * Runs code after all earlier requests. Ends quietly when the signal is aborted, which interrupts the code; the next
   * request begins once the kernel is free.
   */
  async *execute(execution: KernelExecution, signal: AbortSignal): AsyncGenerator<ExecutionEvent> {
    const { program } = this.#options;
    const hasVariables = Object.keys(execution.variables).length > 0;
    if (hasVariables && isInstalled(program) && dialectOf(program) === undefined) {
      const message = `a kernel for ${this.language} takes no variables with its code; give them to the sandbox`;
      yield syntheticError("NotSupported", message);
      return;
    }
    // Rejects only when the signal is aborted.
    const release = await this.#turns.acquire(signal).catch(() => undefined);
    if (release === undefined) return;
    const { metrics, maxOutputBytes } = this.#options;
    try {
      let kernel: Kernel;
      try {
        kernel = await this.#usableKernel();
      } catch (error) {
        yield syntheticError("UnexpectedEndOfExecution", `Failed to create context: ${messageOf(error)}`);
        return;
      }
      const startedMs = performance.now();
      let status: "ok" | "error" | "died" = "ok";
      let isComplete = false;
      try {
        for await (const event of limitOutput(this.#eventsOf(kernel, execution, signal), maxOutputBytes)) {
          if (event.type === "error") status = kernel.isUsable ? "error" : "died";
          yield event;
        }
        isComplete = !signal.aborted;
      } finally {
        metrics.executions.inc({ status: isComplete ? status : "interrupted" });
        metrics.executionSeconds.observe((performance.now() - startedMs) / 1000);
      }
    } finally {
      release();
    }
  }

  /** The events of the code, which an installed kernel runs between code that sets its variables and takes them back. */
  async *#eventsOf(
    kernel: Kernel,
    execution: KernelExecution,
    signal: AbortSignal,
  ): AsyncGenerator<ExecutionEvent> {
    const dialect = dialectOf(this.#options.program);
    if (dialect === undefined) {
      yield* kernel.execute(execution, signal);
      return;
    }
    const names = Object.keys(execution.variables);
    // Requests are run in their order, so none of these has to be waited for.
    if (names.length > 0) void kernel.runSilently(settingOf(dialect, execution.variables));
    try {
      for await (const event of kernel.execute(execution, signal)) {
        if (dialect.sendsLineEndsApart) yield* lineEndApart(event);
        else yield event;
      }
    } finally {
      if (names.length > 0) void kernel.runSilently(resettingOf(dialect, names, this.#options.environment()));
    }
  }

  /** Gives an unused kernel the current environment. @throws SandboxError failed_precondition without an answer. */
  async renewEnvironment(): Promise<void> {
    const kernel = await this.#kernel;
    if (kernel === undefined) return;
    const before = this.#environment;
    const after = this.#options.environment();
    // A request without changes would cost half of a warm start.
    if (isDeepStrictEqual(before, after)) return;
    if (canGoOnWith(before, after)) {
      const unset = Object.keys(before).filter((name) => !(name in after));
      await kernel.changeEnvironment({ set: after, unset });
      // Set only now: a kernel that did not answer gets the same request again.
      this.#environment = after;
    } else {
      this.#restartCause = undefined;
      await kernel.kill();
    }
  }

  /** Runs an invisible first cell, so that the user's first one is fast. */
  async warmUp(): Promise<void> {
    await (await this.#usableKernel()).runSilently("pass");
  }

  /** Replaces the kernel, in the same folder. @throws SandboxError as `ready`; the next use tries again. */
  async restart(): Promise<void> {
    const before = this.#kernel;
    this.#observer?.restarting();
    this.#restartCause = "asked";
    this.#kernel = this.#started(
      (async () => {
        const kernel = await before?.catch(() => undefined);
        await kernel?.close();
        return this.#start();
      })(),
    );
    await this.#kernel;
  }

  /** Ends the kernel and all waiting executions. Safe to repeat. */
  remove(): Promise<void> {
    this.#observer?.removed();
    return this.#leave("close", new SandboxError(REASONS.context_removed, "the context was removed"));
  }

  /** Like `remove`, without asking the kernel. */
  kill(): Promise<void> {
    this.#observer?.removed();
    return this.#leave("kill", new SandboxError("sandbox_ended_meanwhile", "the sandbox has ended"));
  }

  /** Leaves the kernel to a later server; executions here end. */
  detach(): Promise<void> {
    return this.#leave("detach", new SandboxError("server_stopped", "the server stops"));
  }

  async #leave(how: "close" | "kill" | "detach", reason: SandboxError): Promise<void> {
    this.#removed.abort(reason);
    const kernel = await this.#kernel?.catch(() => undefined);
    await kernel?.[how]();
  }

  async #usableKernel(): Promise<Kernel> {
    for (;;) {
      this.#removed.signal.throwIfAborted();
      this.#kernel ??= this.#started(this.#start());
      const promise = this.#kernel;
      const kernel = await promise;
      if (kernel.isUsable) return kernel;
      // The kernel has ended, or is about to end.
      if (this.#kernel === promise) this.#kernel = undefined;
    }
  }

  #started(kernel: Promise<Kernel>): Promise<Kernel> {
    // A failed start is reported to those who wait for it, and the next use tries again.
    const forget = (): void => {
      if (this.#kernel === kernel) this.#kernel = undefined;
    };
    kernel.then(({ gone }) => gone).then(forget, forget);
    return kernel;
  }

  async #start(): Promise<Kernel> {
    const { environment, metrics, zygote } = this.#options;
    this.#removed.signal.throwIfAborted();
    this.#observer?.starting();
    const startedMs = performance.now();
    const env = environment();
    const forked = await this.#fork(env);
    let kernel: Kernel;
    try {
      kernel = forked ?? (await startKernel({ ...this.#surroundings, env }));
    } catch (error) {
      // In a removed sandbox no start is expected to succeed.
      if (!this.#removed.signal.aborted) this.#startFailed(error);
      throw error;
    }
    metrics.startSeconds.observe({ how: forked ? "forked" : "cold" }, (performance.now() - startedMs) / 1000);
    // For the next kernel; not before, because it would take CPU time from this one.
    void zygote?.start();
    this.#environment = env;
    const dialect = dialectOf(this.#options.program);
    if (dialect?.hasOwnVariables === true) void kernel.runSilently(settingOf(dialect, env));
    if (this.#restartCause !== undefined) metrics.restarts.inc({ cause: this.#restartCause });
    return this.#entered(kernel);
  }

  #startFailed(error: unknown): void {
    const { language, log, metrics } = this.#options;
    if (error instanceof SandboxError && ERRORS_OF_CLIENTS.has(error.code)) return;
    metrics.failedStarts.inc();
    const output = error instanceof KernelStartError ? error.output : undefined;
    log.warn({ reason: messageOf(error), context: this.id, language, output }, "kernel did not start");
  }

  /** Undefined when it has to be started cold. @throws when that would fail, too. */
  async #fork(env: Readonly<Record<string, string>>): Promise<Kernel | undefined> {
    const { program, zygote, settings, metrics, log } = this.#options;
    const forked = isInstalled(program) ? undefined : zygote?.forked(program, env);
    if (forked === undefined) return undefined;
    const startTimeoutMs = Math.min(settings.startTimeoutMs, FORK_TIMEOUT_MS);
    const forking = { env, program: forked, settings: { ...settings, startTimeoutMs } };
    try {
      return await startKernel({ ...this.#surroundings, ...forking });
    } catch (error) {
      if (!(error instanceof SandboxError) || error.code !== "failed_precondition") throw error;
      this.#removed.signal.throwIfAborted();
      log.warn({ err: error }, "kernel could not be forked and is started");
      metrics.failedZygotes.inc();
      zygote?.disable();
      return undefined;
    }
  }

  async #adopt(process: Process, connection: KernelConnection): Promise<Kernel> {
    this.#observer?.starting();
    const kernel = await adoptKernel({ ...this.#surroundings, process, connection });
    this.#options.metrics.adopted.inc();
    return this.#entered(kernel);
  }

  async #entered(kernel: Kernel): Promise<Kernel> {
    const { metrics, kernelChanged } = this.#options;
    this.#restartCause = "died";
    this.#running = kernel;
    metrics.kernels.inc();
    void kernel.gone.then(() => {
      metrics.kernels.dec();
      if (this.#running !== kernel) return;
      this.#running = undefined;
      void kernelChanged();
    });
    await kernelChanged();
    this.#observer?.started(kernel);
    return kernel;
  }

  get #surroundings(): Surroundings {
    const onSilent = (): void => this.#options.metrics.silent.inc();
    return { ...this.#options, onSilent, observer: () => this.#observer, signal: this.#removed.signal };
  }
}
