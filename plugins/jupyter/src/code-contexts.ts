import { randomUUID } from "node:crypto";
import {
  processEnvironment,
  resolveSandboxPath,
  SandboxError,
  type LiveSandbox,
  type Logger,
} from "@coppice/core";
import { CodeContext } from "./code-context.js";
import { DEFAULT_LANGUAGE, languageNamed, type Languages } from "./languages.js";
import type { KernelMetrics } from "./kernel-metrics.js";
import type { KernelSettings } from "./kernel.js";

export interface CodeContextsOptions {
  readonly languages: Languages;
  readonly settings: KernelSettings;
  readonly maxContexts: number;
  readonly maxOutputBytes: number;
  readonly metrics: KernelMetrics;
  readonly log: Logger;
}

export interface CreateContext {
  /** `python` when absent or empty. */
  readonly language?: string | undefined;
  /** Inside the sandbox; relative to the user's home, which it is when absent. */
  readonly cwd?: string | undefined;
}

/** The contexts of every sandbox, dropped with it. */
export class CodeContexts {
  readonly #options: CodeContextsOptions;
  readonly #sandboxes = new Map<LiveSandbox, SandboxContexts>();

  constructor(options: CodeContextsOptions) {
    this.#options = options;
  }

  /** @throws SandboxError unavailable when the sandbox has ended. */
  of(sandbox: LiveSandbox): SandboxContexts {
    const known = this.#sandboxes.get(sandbox);
    if (known !== undefined) return known;
    if (sandbox.ended.aborted)
      throw new SandboxError("unavailable", `sandbox ${sandbox.record.id} has ended`);
    const contexts = new SandboxContexts(sandbox, this.#options);
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

  /** Ends every kernel. */
  async end(): Promise<void> {
    const all = [...this.#sandboxes.values()];
    this.#sandboxes.clear();
    await Promise.all(all.map((contexts) => contexts.end()));
  }
}

/** The contexts of one sandbox, oldest first. A default context of a language is there as soon as it is asked for. */
export class SandboxContexts {
  readonly #sandbox: LiveSandbox;
  readonly #options: CodeContextsOptions;
  readonly #contexts = new Map<string, CodeContext>();
  readonly #defaults = new Map<string, Promise<CodeContext>>();
  #creating = 0;

  constructor(sandbox: LiveSandbox, options: CodeContextsOptions) {
    this.#sandbox = sandbox;
    this.#options = options;
  }

  /** Every context, the default ones of these languages included, whose kernels may not have been needed yet. */
  async list(languages: readonly string[] = [DEFAULT_LANGUAGE]): Promise<readonly CodeContext[]> {
    for (const language of languages) await this.defaultFor(language);
    return [...this.#contexts.values()];
  }

  /** @throws SandboxError not_found with E2B's text. */
  get(id: string): CodeContext {
    const context = this.#contexts.get(id);
    if (context === undefined) throw new SandboxError("not_found", `Context ${id} not found`);
    return context;
  }

  /** The one that code without a context runs in. @throws SandboxError unimplemented for a language that is not here. */
  defaultFor(language: string | undefined): Promise<CodeContext> {
    const name = languageNamed(language);
    let context = this.#defaults.get(name);
    if (context === undefined) {
      context = this.#make(name, undefined).then((made) => {
        this.#contexts.set(made.id, made);
        return made;
      });
      this.#defaults.set(name, context);
      context.catch(() => this.#defaults.delete(name));
    }
    return context;
  }

  /**
   * Makes a context whose kernel runs.
   * @throws SandboxError unimplemented for a language that is not here, invalid_argument for a cwd that
   * does not exist, resource_exhausted for one context too many, failed_precondition when the kernel
   * does not come up.
   */
  async create({ language, cwd }: CreateContext): Promise<CodeContext> {
    const name = languageNamed(language);
    const { maxContexts } = this.#options;
    if (this.#contexts.size + this.#creating >= maxContexts) {
      throw new SandboxError(
        "resource_exhausted",
        `the sandbox already has ${maxContexts} contexts, which is the limit`,
      );
    }
    this.#creating++;
    try {
      const context = await this.#make(name, cwd);
      const remove = (): void => void context.kill();
      this.#sandbox.ended.addEventListener("abort", remove, { once: true });
      try {
        await context.ready();
      } finally {
        this.#sandbox.ended.removeEventListener("abort", remove);
      }
      this.#contexts.set(context.id, context);
      return context;
    } finally {
      this.#creating--;
    }
  }

  /** @throws SandboxError not_found with E2B's text. */
  async remove(id: string): Promise<void> {
    const context = this.get(id);
    this.#contexts.delete(id);
    for (const [language, made] of this.#defaults) {
      if ((await made.catch(() => undefined)) === context) this.#defaults.delete(language);
    }
    await context.remove();
  }

  /** Ends every kernel at once. */
  async end(): Promise<void> {
    const contexts = [...this.#contexts.values()];
    this.#contexts.clear();
    this.#defaults.clear();
    await Promise.all(contexts.map((context) => context.kill()));
  }

  async #make(language: string, cwd: string | undefined): Promise<CodeContext> {
    const sandbox = this.#sandbox;
    const program = await this.#options.languages.programFor(language);
    const user = await sandbox.runtime.user();
    sandbox.ended.throwIfAborted();
    return new CodeContext({
      id: randomUUID(),
      language,
      cwd: resolveSandboxPath(cwd ?? "", user),
      sandbox: sandbox.runtime,
      user,
      environment: () => processEnvironment(sandbox, user),
      program,
      ...this.#options,
      log: this.#options.log.child({ sandbox: sandbox.record.id }),
    });
  }
}
