import { randomUUID } from "node:crypto";
import { setImmediate } from "node:timers/promises";
import {
  type LiveSandbox,
  type Logger,
  processEnvironment,
  resolveSandboxPath,
  SandboxError,
} from "@coppice/core";
import type { AdoptedProcess, Process, User } from "@coppice/core/backend";
import { CodeContext } from "./code-context.js";
import { DEFAULT_LANGUAGE, languageNamed, type Languages } from "../programs/languages.js";
import { readKernelLabel } from "../programs/kernel-program.js";
import type { KernelMetrics } from "../kernel/kernel-metrics.js";
import type { KernelNotes, SandboxNotes } from "../kernel/kernel-notes.js";
import type { KernelSettings } from "../kernel/kernel-surroundings.js";
import { killProgram } from "../programs/kernel-process.js";
import { Zygote, type ZygoteSettings } from "../kernel/zygote.js";
import { REASONS } from "../reasons.js";

interface CodeContextsOptions {
  readonly languages: Languages;
  /** The account of kernels; the sandbox's default one when undefined. */
  readonly userName: string | undefined;
  readonly settings: KernelSettings;
  readonly zygotes: ZygoteSettings & {
    /** False: every kernel of that sandbox is started cold. */
    readonly isWanted: (sandbox: LiveSandbox) => boolean;
  };
  readonly maxContexts: number;
  readonly maxWaiting: number;
  readonly maxOutputBytes: number;
  readonly metrics: KernelMetrics;
  readonly notes: KernelNotes;
  readonly log: Logger;
}

interface CreateContext {
  /** `python` when absent or empty. */
  readonly language?: string | undefined;
  /** Inside the sandbox; relative to the user's home, the default. */
  readonly cwd?: string | undefined;
}

interface MakeContext extends CreateContext {
  readonly language: string;
  readonly isDefault: boolean;
  readonly userName?: string;
}

/** Constant facts of a context. */
type ContextFacts = Pick<CodeContext, "id" | "language" | "cwd" | "isDefault"> & {
  readonly userName?: string | undefined;
};

/** The contexts of every sandbox, dropped with it. */
export class CodeContexts {
  readonly #options: CodeContextsOptions;
  readonly #sandboxes = new Map<LiveSandbox, SandboxContexts>();
  /** Sandboxes of another server whose contexts have not been adopted yet. */
  readonly #leftOver = new Set<LiveSandbox>();

  constructor(options: CodeContextsOptions) {
    this.#options = options;
  }

  /** @throws SandboxError unavailable when the sandbox has ended or is paused. */
  async of(sandbox: LiveSandbox): Promise<SandboxContexts> {
    const contexts = this.#sandboxes.get(sandbox) ?? this.#enter(sandbox);
    await contexts.adopted;
    return contexts;
  }

  /**
   * Adopts the contexts of sandboxes that outlived another server, those of paused ones at first use, and removes the
   * records of the rest. Failures are logged: such a sandbox has no contexts.
   */
  async adopt(sandboxes: readonly LiveSandbox[]): Promise<void> {
    await this.#options.notes.keepOnly(sandboxes);
    for (const sandbox of sandboxes) {
      this.#leftOver.add(sandbox);
      sandbox.ended.addEventListener("abort", () => this.#leftOver.delete(sandbox), { once: true });
    }
    const running = sandboxes.filter(({ record }) => record.state === "running");
    await Promise.all(running.map((sandbox) => this.of(sandbox)));
  }

  /** Starts the default kernel. Never rejects: the first execution reports a failure. */
  async warm(sandbox: LiveSandbox): Promise<void> {
    try {
      const context = await (await this.of(sandbox)).defaultFor(undefined);
      await context.ready();
    } catch (error) {
      const fields = { err: error, sandbox: sandbox.record.id };
      if (!sandbox.ended.aborted) this.#options.log.warn(fields, "the kernel of a new sandbox did not start");
    }
  }

  /** Ends every kernel, or leaves it to a later server that can adopt it. */
  async detach(): Promise<void> {
    const all = [...this.#sandboxes.values()];
    this.#sandboxes.clear();
    await Promise.all(all.map((contexts) => contexts.detach()));
  }

  #enter(sandbox: LiveSandbox): SandboxContexts {
    const { id } = sandbox.record;
    if (sandbox.ended.aborted) throw new SandboxError("sandbox_ended", `sandbox ${id} has ended`);
    const contexts = new SandboxContexts(sandbox, this.#options);
    if (this.#leftOver.delete(sandbox)) {
      contexts.adopted = contexts.adopt().catch((error: unknown) => {
        this.#options.log.error({ err: error, sandbox: id }, "kernels could not be taken over");
      });
    }
    this.#sandboxes.set(sandbox, contexts);
    sandbox.ended.addEventListener(
      "abort",
      () => {
        this.#sandboxes.delete(sandbox);
        void contexts.end();
      },
      { once: true },
    );
    return contexts;
  }
}

/** The contexts of one sandbox, oldest first. A language's default context is created at first use. */
export class SandboxContexts {
  readonly #sandbox: LiveSandbox;
  readonly #options: CodeContextsOptions;
  readonly #contexts = new Map<string, CodeContext>();
  readonly #defaults = new Map<string, Promise<CodeContext>>();
  /** Undefined for a sandbox that does not outlive the server. */
  readonly notes: SandboxNotes | undefined;
  /** Settles when the last server's contexts have been adopted. */
  adopted = Promise.resolve();
  #zygote: Zygote | undefined;
  #creating = 0;

  constructor(sandbox: LiveSandbox, options: CodeContextsOptions) {
    this.#sandbox = sandbox;
    this.#options = options;
    this.notes = options.notes.of(sandbox);
  }

  /**
   * Adopts the last server's contexts by their ids, with their kernels, and ends kernels without a context. Resolves
   * before the kernels are ready.
   */
  async adopt(): Promise<void> {
    const { contexts } = (await this.notes?.read()) ?? { contexts: [] };
    const processes = await this.#kernelProcesses();
    for (const { kernel, ...known } of contexts) {
      const context = await this.#contextOf(known).catch((error: unknown) => {
        this.#options.log.warn({ err: error, context: known.id }, "context cannot be taken over");
      });
      if (context === undefined) continue;
      this.#contexts.set(context.id, context);
      if (context.isDefault) this.#defaults.set(context.language, Promise.resolve(context));
      if (kernel === undefined) continue;
      const process = processes.get(kernel.id);
      if (process === undefined || (await hasEnded(process))) context.lost();
      else {
        context.adopt(process, kernel);
        processes.delete(kernel.id);
      }
    }
    for (const process of processes.values()) {
      // Started just before the server was killed, so without a note; or of a language that was removed.
      await killProgram(process);
    }
  }

  async prepare({ withKernel }: { readonly withKernel: boolean }): Promise<void> {
    await (await this.#zygoteOf())?.start();
    if (withKernel) await (await this.defaultFor(undefined)).warmUp();
  }

  /** Gives unused kernels the current environment. @throws SandboxError failed_precondition without an answer. */
  async renewEnvironment(): Promise<void> {
    const renewals = [...this.#contexts.values()].map((context) => context.renewEnvironment());
    await Promise.all([this.#zygote?.renewEnvironment(), ...renewals]);
  }

  /** All contexts, first the default ones of these languages, which may have no kernel yet. */
  async list(languages: readonly string[] = [DEFAULT_LANGUAGE]): Promise<readonly CodeContext[]> {
    const first = await Array.fromAsync(languages, (language) => this.defaultFor(language));
    return [...new Set([...first, ...this.#contexts.values()])];
  }

  has(id: string): boolean {
    return this.#contexts.has(id);
  }

  /** @throws SandboxError not_found with E2B's text. */
  get(id: string): CodeContext {
    const context = this.#contexts.get(id);
    if (context === undefined) throw new SandboxError(REASONS.context_not_found, `Context ${id} not found`);
    return context;
  }

  /** The default context. @throws SandboxError unimplemented for an unknown language. */
  defaultFor(language: string | undefined): Promise<CodeContext> {
    const name = languageNamed(language);
    let context = this.#defaults.get(name);
    if (context === undefined) {
      context = this.#make({ language: name, isDefault: true }).then((made) => this.#keep(made));
      this.#defaults.set(name, context);
      context.catch(() => this.#defaults.delete(name));
    }
    return context;
  }

  /** Makes a context and starts its kernel. @throws SandboxError as `ready`; unimplemented, resource_exhausted. */
  async create({ language, cwd }: CreateContext): Promise<CodeContext> {
    const { maxContexts } = this.#options;
    if (this.#contexts.size + this.#creating >= maxContexts) {
      const text = `the sandbox already has ${maxContexts} contexts, which is the limit`;
      throw new SandboxError(REASONS.context_limit_reached, text);
    }
    this.#creating++;
    try {
      const asked = { language: languageNamed(language), cwd, isDefault: false };
      return await this.#keep(
        await this.#started(asked).catch((error: unknown) => this.#asRoot(asked, error)),
      );
    } finally {
      this.#creating--;
    }
  }

  async #started(asked: MakeContext): Promise<CodeContext> {
    const context = await this.#make(asked);
    const remove = (): void => void context.kill();
    this.#sandbox.ended.addEventListener("abort", remove, { once: true });
    try {
      await context.ready();
    } finally {
      this.#sandbox.ended.removeEventListener("abort", remove);
    }
    return context;
  }

  /** The context in a folder that only root may enter: E2B's kernels run as root. @throws the error for all others. */
  async #asRoot(asked: MakeContext, error: unknown): Promise<CodeContext> {
    const isForRoot = error instanceof SandboxError && error.reason === "spawn_not_permitted";
    if (!isForRoot || this.#options.userName !== undefined) throw error;
    return this.#started({ ...asked, userName: "root" }).catch(() => {
      throw error;
    });
  }

  async #keep(context: CodeContext): Promise<CodeContext> {
    this.#contexts.set(context.id, context);
    await this.#note();
    return context;
  }

  /** @throws SandboxError not_found with E2B's text. */
  async remove(id: string): Promise<void> {
    const context = this.get(id);
    this.#contexts.delete(id);
    if (context.isDefault) this.#defaults.delete(context.language);
    await Promise.all([this.#note(), context.remove()]);
  }

  /** Ends every kernel at once: the sandbox has ended. */
  async end(): Promise<void> {
    const kills = [this.#zygote, ...this.#forget()].map((one) => one?.kill());
    await Promise.all([this.notes?.remove(), ...kills]);
  }

  /** Leaves every kernel to a later server, or ends those that cannot be adopted. */
  async detach(): Promise<void> {
    if (this.notes === undefined) return this.end();
    // First: otherwise the end of the kernels would be recorded.
    await this.notes.close();
    this.#zygote?.detach();
    await Promise.all(this.#forget().map((context) => context.detach()));
  }

  #forget(): readonly CodeContext[] {
    const contexts = [...this.#contexts.values()];
    this.#contexts.clear();
    this.#defaults.clear();
    return contexts;
  }

  /** Records the contexts for a later server. */
  async #note(): Promise<void> {
    if (this.notes === undefined) return;
    await this.notes.update({
      contexts: [...this.#contexts.values()].map(
        ({ id, language, cwd, isDefault, userName, connection }) => ({
          id,
          language,
          cwd,
          isDefault,
          userName,
          kernel: connection,
        }),
      ),
    });
  }

  async #kernelProcesses(): Promise<Map<string, AdoptedProcess>> {
    const processes = new Map<string, AdoptedProcess>();
    for (const process of await this.#sandbox.adopted()) {
      const label = readKernelLabel(process.label);
      if (label === undefined) continue;
      if ("kernel" in label) processes.set(label.kernel, process);
      else (await this.#zygoteOf())?.adopt(process, label.zygote);
    }
    return processes;
  }

  async #zygoteOf(): Promise<Zygote | undefined> {
    const { zygotes, metrics, log } = this.#options;
    const sandbox = this.#sandbox;
    if (!zygotes.isWanted(sandbox)) return undefined;
    const user = await this.#user();
    return (this.#zygote ??= new Zygote({
      sandbox: sandbox.runtime,
      user,
      environment: () => processEnvironment(sandbox, user),
      settings: zygotes,
      metrics,
      log: log.child({ sandbox: sandbox.record.id }),
    }));
  }

  /** @throws SandboxError failed_precondition when the sandbox has no such account. */
  async #user(userName = this.#options.userName): Promise<User> {
    try {
      return await this.#sandbox.runtime.user(userName);
    } catch (error) {
      if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
      const text = `the sandbox has no account '${userName}'`;
      throw new SandboxError("account_missing", text, { cause: error });
    }
  }

  async #make({ cwd = "", ...known }: MakeContext): Promise<CodeContext> {
    // Relative to the home of the sandbox's user, whichever account runs the kernel.
    const user = await this.#sandbox.runtime.user();
    return this.#contextOf({ id: randomUUID(), ...known, cwd: resolveSandboxPath(cwd, user) });
  }

  async #contextOf(known: ContextFacts): Promise<CodeContext> {
    const sandbox = this.#sandbox;
    const program = await this.#options.languages.programFor(known.language, sandbox.runtime);
    const user = await this.#user(known.userName);
    sandbox.ended.throwIfAborted();
    return new CodeContext({
      sandbox: sandbox.runtime,
      tenant: sandbox.record.owner,
      isFrozen: () => sandbox.isFrozen,
      user,
      environment: () => processEnvironment(sandbox, user),
      program,
      // Its kernels have the other account.
      zygote: known.userName === undefined ? await this.#zygoteOf() : undefined,
      ...this.#options,
      ...known,
      userName: known.userName,
      log: this.#options.log.child({ sandbox: sandbox.record.id }),
      kernelChanged: () => this.#note(),
    });
  }
}

async function hasEnded({ exit }: Process): Promise<boolean> {
  return Promise.race([exit.then(() => true), setImmediate(false)]);
}
