import type { Clock, LiveSandbox, Spool } from "@coppice/core";
import type { Commands } from "@coppice/plugin-commands";
import { ShellError } from "./shell-error.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import type { OpenSession, SandboxSessions, Session } from "./session.js";
import { SHELL_LABEL } from "./shell.js";
import { ShellSession } from "./shell-session.js";

export interface ShellSessionsOptions {
  readonly commands: Commands;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
  readonly spool: Spool;
}

/** The sessions of every sandbox, dropped with it. */
export class ShellSessions {
  readonly #options: ShellSessionsOptions;
  readonly #sandboxes = new Map<LiveSandbox, Promise<SessionsOfSandbox>>();

  constructor(options: ShellSessionsOptions) {
    this.#options = options;
  }

  /** Makes the working directory of a sandbox, and ends shells of an earlier server, at its first use. */
  of(sandbox: LiveSandbox): Promise<SandboxSessions> {
    const known = this.#sandboxes.get(sandbox);
    if (known !== undefined) return known;
    const preparing = this.#prepare(sandbox);
    if (sandbox.ended.aborted) return preparing;
    this.#sandboxes.set(sandbox, preparing);
    preparing.catch(() => this.#sandboxes.delete(sandbox));
    sandbox.ended.addEventListener("abort", () => this.#sandboxes.delete(sandbox), { once: true });
    return preparing;
  }

  /** Ends all shells. Processes go on. */
  async close(): Promise<void> {
    const all = [...this.#sandboxes.values()];
    this.#sandboxes.clear();
    for (const sessions of await Promise.allSettled(all)) {
      if (sessions.status === "fulfilled") sessions.value.close();
    }
  }

  async #prepare(sandbox: LiveSandbox): Promise<SessionsOfSandbox> {
    for (const process of await sandbox.adopted()) {
      // Its marks were for a server that is gone.
      if (process.label === SHELL_LABEL) await process.kill("SIGKILL", "group").catch(() => undefined);
    }
    // Sessions start elsewhere where it cannot be made.
    await sandbox.runtime.files.makeDir(this.#options.config.workdir).catch(() => undefined);
    return new SessionsOfSandbox(sandbox, this.#options);
  }
}

class SessionsOfSandbox implements SandboxSessions {
  readonly #sandbox: LiveSandbox;
  readonly #options: ShellSessionsOptions;
  readonly #sessions = new Map<string, ShellSession>();
  /** Sessions without an id, which wait for their last command. */
  readonly #ending = new Set<ShellSession>();

  constructor(sandbox: LiveSandbox, options: ShellSessionsOptions) {
    this.#sandbox = sandbox;
    this.#options = options;
  }

  create(id: string, open: OpenSession): Session {
    const known = this.#sessions.get(id);
    if (known?.isAlive === true) {
      throw new ShellError("SESSION_ALREADY_EXISTS", `Session '${id}' already exists`, {
        sessionId: id,
        containerPlacementId: null,
      });
    }
    return this.#add(id, open);
  }

  get(id: string, open: OpenSession = {}): Session {
    return this.#sessions.get(id) ?? this.#add(id, open);
  }

  ids(): readonly string[] {
    return [...this.#sessions.keys()];
  }

  async delete(id: string): Promise<boolean> {
    const session = this.#sessions.get(id);
    if (session === undefined) return false;
    this.#sessions.delete(id);
    this.#ending.add(session);
    await session.delete().finally(() => this.#ending.delete(session));
    return true;
  }

  close(): void {
    for (const session of [...this.#sessions.values(), ...this.#ending]) session.close();
  }

  #add(id: string, open: OpenSession): Session {
    const { maxSessions } = this.#options.config;
    if (this.#sessions.size + this.#ending.size >= maxSessions && !this.#sessions.has(id)) {
      throw new ShellError("RESOURCE_BUSY", `The sandbox has ${maxSessions} sessions already`, {
        sessionId: id,
      });
    }
    const session = new ShellSession({ id, open, sandbox: this.#sandbox, ...this.#options });
    this.#sessions.set(id, session);
    return session;
  }
}
