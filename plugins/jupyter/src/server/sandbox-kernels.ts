import { randomUUID } from "node:crypto";
import { posix } from "node:path";
import { resolveSandboxPath, SandboxError, type LiveSandbox, type MemoryRoom } from "@coppice/core";
import type { CodeContext } from "../contexts/code-context.js";
import type { CodeContexts, SandboxContexts } from "../contexts/code-contexts.js";
import type { NotebookSession } from "../kernel/kernel-notes.js";
import { KernelClients, type KernelClientsOptions } from "./kernel-clients.js";
import { REASONS } from "../reasons.js";

interface SandboxKernelsOptions extends Omit<KernelClientsOptions, "hold"> {
  readonly room: MemoryRoom;
  readonly contexts: CodeContexts;
}

interface StartSession extends Pick<NotebookSession, "path" | "name" | "type"> {
  /** A running kernel; a new one when undefined. */
  readonly kernelId: string | undefined;
  readonly kernelName: string | undefined;
}

type ChangeSession = { readonly [K in keyof StartSession]?: StartSession[K] | undefined };

/** Finds the Jupyter side of a sandbox. @throws SandboxError unavailable when the sandbox has ended. */
export type FindKernels = (sandbox: LiveSandbox) => Promise<SandboxKernels>;

export function kernelsOfSandboxes(options: SandboxKernelsOptions): FindKernels {
  const known = new WeakMap<LiveSandbox, SandboxKernels>();
  return async (sandbox) => {
    const contexts = await options.contexts.of(sandbox);
    if (sandbox.ended.aborted)
      throw new SandboxError("sandbox_ended", `sandbox ${sandbox.record.id} has ended`);
    const kernels = known.get(sandbox) ?? new SandboxKernels(sandbox, contexts, options);
    known.set(sandbox, kernels);
    return kernels;
  };
}

/** The kernels of one sandbox as Jupyter's clients see them: the contexts of `/execute`, by the same ids. */
export class SandboxKernels {
  readonly startedAtMs: number;
  readonly #sandbox: LiveSandbox;
  readonly #contexts: SandboxContexts;
  readonly #options: SandboxKernelsOptions;
  readonly #clients = new WeakMap<CodeContext, KernelClients>();
  readonly #sessions = new Map<string, NotebookSession>();
  /** Sessions whose kernel is being started, by the path of their document. */
  readonly #opening = new Map<string, Promise<NotebookSession>>();

  constructor(sandbox: LiveSandbox, contexts: SandboxContexts, options: SandboxKernelsOptions) {
    this.#sandbox = sandbox;
    this.#contexts = contexts;
    this.#options = options;
    this.startedAtMs = options.clock.now();
    // Sessions of the previous server.
    for (const session of contexts.notes?.sessions ?? []) this.#sessions.set(session.id, session);
  }

  list(): Promise<readonly CodeContext[]> {
    return this.#contexts.list();
  }

  /** @throws SandboxError not_found */
  get(id: string): CodeContext {
    return this.#contexts.get(id);
  }

  /** The clients of a kernel, which observe it from the first call on. */
  clientsOf(context: CodeContext): KernelClients {
    let clients = this.#clients.get(context);
    if (clients === undefined) {
      const { id: sandbox, owner: tenant } = this.#sandbox.record;
      const hold = (giveUp: () => void) => this.#options.room.open({ tenant, sandbox, giveUp });
      clients = new KernelClients(context, { ...this.#options, hold });
      this.#clients.set(context, clients);
    }
    return clients;
  }

  /** Starts a kernel in a document's folder, or the nearest above it. @throws as `SandboxContexts.create`. */
  async start(kernelName: string | undefined, documentPath: string | undefined): Promise<CodeContext> {
    const cwd = documentPath === undefined ? undefined : await this.#folderOf(documentPath);
    const context = await this.#contexts.create({ language: kernelName, cwd });
    this.clientsOf(context);
    return context;
  }

  /** @throws SandboxError not_found */
  async remove(id: string): Promise<void> {
    await this.#contexts.remove(id);
    for (const session of this.#sessions.values()) {
      if (session.kernelId === id) this.#sessions.delete(session.id);
    }
    await this.#note();
  }

  /** Sessions with an existing kernel, oldest first. */
  sessions(): readonly NotebookSession[] {
    for (const session of this.#sessions.values()) {
      if (!this.#contexts.has(session.kernelId)) this.#sessions.delete(session.id);
    }
    return [...this.#sessions.values()];
  }

  /** @throws SandboxError not_found */
  session(id: string): NotebookSession {
    const session = this.sessions().find((known) => known.id === id);
    if (session === undefined)
      throw new SandboxError(REASONS.session_not_found, `Session ${id.slice(0, 100)} not found`);
    return session;
  }

  /** The session of a document, open or new. @throws SandboxError resource_exhausted, or as starting its kernel. */
  async open(start: StartSession): Promise<NotebookSession> {
    const open = this.sessions().find(({ path }) => path === start.path);
    if (open !== undefined) return open;
    let opening = this.#opening.get(start.path);
    if (opening === undefined) {
      this.#refuseTooMany();
      opening = this.#openNew(start).finally(() => this.#opening.delete(start.path));
      this.#opening.set(start.path, opening);
    }
    return opening;
  }

  async #openNew(start: StartSession): Promise<NotebookSession> {
    const kernelId = await this.#kernelFor(start, start.path);
    const { path, name, type } = start;
    const session = { id: randomUUID(), path, name, type, kernelId };
    this.#sessions.set(session.id, session);
    await this.#note();
    return session;
  }

  /**
   * Renames a session's document or replaces its kernel. As in jupyter_server, the old kernel ends, unless another
   * session uses it.
   * @throws SandboxError not_found, or as `open`.
   */
  async change(id: string, change: ChangeSession): Promise<NotebookSession> {
    const path = change.path ?? this.session(id).path;
    const isOtherKernel = change.kernelId !== undefined || change.kernelName !== undefined;
    const chosen = isOtherKernel ? await this.#kernelFor(change, path) : undefined;
    // It may have been closed or changed during a kernel's start.
    const before = this.#sessions.get(id);
    if (before === undefined) {
      if (chosen !== undefined && change.kernelId === undefined) await this.remove(chosen);
      return this.session(id);
    }
    const session = {
      id,
      path,
      name: change.name ?? before.name,
      type: change.type ?? before.type,
      kernelId: chosen ?? before.kernelId,
    };
    this.#sessions.set(id, session);
    const isUsed = this.sessions().some(({ kernelId }) => kernelId === before.kernelId);
    if (isUsed || !this.#contexts.has(before.kernelId)) await this.#note();
    else await this.remove(before.kernelId);
    return session;
  }

  /** Ends a session and its kernel. @throws SandboxError not_found */
  async close(id: string): Promise<void> {
    const { kernelId } = this.session(id);
    this.#sessions.delete(id);
    await this.remove(kernelId);
  }

  async #note(): Promise<void> {
    await this.#contexts.notes?.update({ sessions: [...this.#sessions.values()] });
  }

  async #kernelFor({ kernelId, kernelName }: ChangeSession, path: string): Promise<string> {
    return kernelId === undefined ? (await this.start(kernelName, path)).id : this.get(kernelId).id;
  }

  #refuseTooMany(): void {
    const { maxSessions } = this.#options.settings;
    if (this.#sessions.size + this.#opening.size < maxSessions) return;
    const text = `the sandbox already has ${maxSessions} sessions, which is the limit`;
    throw new SandboxError(REASONS.session_limit_reached, text);
  }

  // Jupyter's paths start at the user's home, with or without a leading slash.
  async #folderOf(documentPath: string): Promise<string | undefined> {
    const { runtime } = this.#sandbox;
    const user = await runtime.user();
    const relative = posix.normalize(`/${documentPath}`).slice(1);
    for (let folder = posix.dirname(relative); folder !== "."; folder = posix.dirname(folder)) {
      const path = resolveSandboxPath(folder, user);
      const entry = await runtime.files.stat(path).catch(() => undefined);
      if (entry?.kind === "directory") return path;
    }
    return undefined;
  }
}
