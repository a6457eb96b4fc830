import { randomBytes } from "node:crypto";
import { type Logger, SandboxError } from "@coppice/core";
import type { Process, Sandbox, User } from "@coppice/core/backend";
import { z } from "zod";
import {
  canGoOnWith,
  type KernelProgram,
  writeKernelLabel,
  type ZygoteAddress,
} from "../programs/kernel-program.js";
import type { KernelMetrics } from "./kernel-metrics.js";
import { zygoteProgram } from "../programs/python-program.js";
import { killProgram, ProgramOutput, startProgram } from "../programs/kernel-process.js";

export interface ZygoteSettings {
  /** Interpreter with ipykernel, inside the sandbox. */
  readonly python: string;
  readonly imports: readonly string[];
  readonly startTimeoutMs: number;
}

interface ZygoteOptions {
  readonly sandbox: Sandbox;
  readonly user: User;
  /** Returns the current complete environment of the sandbox's processes. */
  readonly environment: () => Readonly<Record<string, string>>;
  readonly settings: ZygoteSettings;
  readonly metrics: KernelMetrics;
  readonly log: Logger;
}

const zygoteReport = z.object({ failures: z.record(z.string(), z.string()), threads: z.array(z.string()) });

// A zygote that ends repeatedly has a permanent cause.
const MAX_STARTS = 3;

interface Running {
  readonly process: Process;
  readonly address: ZygoteAddress;
  readonly environment: Readonly<Record<string, string>>;
}

/**
 * The process from which one sandbox's Python kernels are forked, with a kernel's modules already imported and shared.
 * Each sandbox has its own, so tenants share nothing.
 */
export class Zygote {
  readonly #options: ZygoteOptions;
  readonly #ended = new AbortController();
  #starting: Promise<void> | undefined;
  #running: Running | undefined;
  #starts = 0;

  constructor(options: ZygoteOptions) {
    this.#options = options;
  }

  /** Starts it unless it runs. Resolves when it is ready, or has failed, which is logged: kernels start cold then. */
  start(): Promise<void> {
    if (this.#running !== undefined || this.#ended.signal.aborted) return Promise.resolve();
    this.#starting ??= this.#start().finally(() => (this.#starting = undefined));
    return this.#starting;
  }

  /** The program that forks a kernel; undefined where that cannot be, or the zygote has another environment. */
  forked(program: KernelProgram, env: Readonly<Record<string, string>>): KernelProgram | undefined {
    if (this.#running === undefined || !canGoOnWith(this.#running.environment, env)) return undefined;
    return program.forkedFrom?.(this.#running.address);
  }

  /** Stops using it after a failure. Its forks live on, and so does it. */
  disable(): void {
    this.#running = undefined;
    this.#starts = MAX_STARTS;
  }

  adopt(process: Process, address: ZygoteAddress): void {
    // Its output has to be read: a full pipe would block it.
    void new ProgramOutput(process, { isStarting: false });
    this.#enter({ process, address, environment: this.#options.environment() });
  }

  async kill(): Promise<void> {
    this.#ended.abort(new SandboxError("sandbox_ended_meanwhile", "the sandbox has ended"));
    await this.#starting;
    if (this.#running !== undefined) await killProgram(this.#running.process);
  }

  detach(): void {
    this.#ended.abort(new SandboxError("server_stopped", "the server stops"));
  }

  /** Ends it, with its kernels, when the sandbox's new environment is one that it cannot provide. */
  async renewEnvironment(): Promise<void> {
    if (this.#running === undefined) return;
    if (!canGoOnWith(this.#running.environment, this.#options.environment())) await this.#drop();
  }

  async #drop(): Promise<void> {
    const process = this.#running?.process;
    this.#running = undefined;
    if (process !== undefined) await killProgram(process);
  }

  async #start(): Promise<void> {
    const { sandbox, user, environment, settings, metrics, log } = this.#options;
    if (this.#starts >= MAX_STARTS) return;
    this.#starts += 1;
    const name = `coppice-zygote-${randomBytes(8).toString("hex")}`;
    const address = { name, secret: randomBytes(32).toString("hex") };
    const env = environment();
    const timeout = AbortSignal.timeout(settings.startTimeoutMs);
    try {
      const { process, report, outputTail } = await startProgram({
        sandbox,
        user,
        program: zygoteProgram({ ...settings, name }),
        env,
        // A user's file must not be imported in the place of a library.
        cwd: "/",
        key: address.secret,
        label: writeKernelLabel({ zygote: address }),
        signal: AbortSignal.any([this.#ended.signal, timeout]),
      });
      this.#enter({ process, address, environment: env });
      const { failures, threads } = zygoteReport.parse(report);
      for (const [module, reason] of Object.entries(failures)) {
        log.info({ module, reason }, "zygote does without a module");
      }
      if (threads.length > 0) throw new Error(`a module started threads: ${threads.join(", ")}`);
      void process.exit.then((exit) => {
        if (!this.#ended.signal.aborted) log.warn({ exit, outputTail: outputTail() }, "zygote ended");
      });
    } catch (error) {
      if (this.#ended.signal.aborted) return;
      await this.#drop();
      metrics.failedZygotes.inc();
      log.warn({ err: error }, "zygote could not be started; kernels start by themselves");
    }
  }

  #enter(running: Running): void {
    this.#running = running;
    const { zygotes } = this.#options.metrics;
    zygotes.inc();
    void running.process.exit.then(() => {
      zygotes.dec();
      if (this.#running === running) this.#running = undefined;
    });
  }
}
