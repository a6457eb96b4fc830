import { type Clock, fulfilledWithin, type LiveSandbox, SandboxError, type Sandboxes } from "@coppice/core";
import type { Commands, StartedCommand } from "@coppice/plugin-commands";
import type { CommandsV1Config } from "../commands-v1-config.js";

interface TerminalsOptions {
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly clock: Clock;
  readonly config: CommandsV1Config;
}

const TAG = "v1-session:";
const SIZE = { columns: 80, rows: 24 };
/** Time in which a shell ends its jobs after a hang-up. */
const HANG_UP_MS = 1_000;

interface Attached {
  clients: number;
  cancelGrace: () => void;
}

/**
 * Terminals that clients name: commands with a tag. One without clients is kept for a while, also over a restart of the
 * server.
 */
export class Terminals {
  readonly #options: TerminalsOptions;
  /** By the id of the command. */
  readonly #attached = new Map<string, Attached>();
  readonly #opening = new WeakMap<LiveSandbox, Map<string, Promise<StartedCommand>>>();

  constructor(options: TerminalsOptions) {
    this.#options = options;
  }

  /**
   * The terminal of that name; a new one with the user's shell when there is none that runs.
   * @throws SandboxError resource_exhausted when the sandbox has too many, and as `Commands.start`.
   */
  async open(
    sandbox: LiveSandbox,
    { session, cwd }: { readonly session: string; readonly cwd: string | undefined },
  ): Promise<StartedCommand> {
    const opening = this.#opening.get(sandbox) ?? new Map<string, Promise<StartedCommand>>();
    this.#opening.set(sandbox, opening);
    const known = opening.get(session) ?? this.#find(sandbox, session);
    if (known !== undefined) return known;
    const starting = this.#start(sandbox, session, cwd);
    opening.set(session, starting);
    try {
      return await starting;
    } finally {
      opening.delete(session);
    }
  }

  /** Counts a client of a terminal until the disposal. The grace of the terminal begins when it was the last. */
  attach(terminal: StartedCommand): Disposable {
    const attached = this.#attachedTo(terminal);
    attached.cancelGrace();
    attached.clients += 1;
    return {
      [Symbol.dispose]: () => {
        attached.clients -= 1;
        if (attached.clients === 0) this.#beginGrace(terminal, attached);
      },
    };
  }

  /** Begins the grace period of running terminals that no client has attached to since this server started. */
  check(): void {
    for (const sandbox of this.#options.sandboxes.list()) {
      if (sandbox.record.state !== "running") continue;
      for (const terminal of this.#running(sandbox)) {
        if (!this.#attached.has(terminal.id)) this.#beginGrace(terminal, this.#attachedTo(terminal));
      }
    }
  }

  close(): void {
    for (const { cancelGrace } of this.#attached.values()) cancelGrace();
  }

  #find(sandbox: LiveSandbox, session: string): StartedCommand | undefined {
    return this.#running(sandbox).findLast(({ request }) => request.tag === TAG + session);
  }

  #running(sandbox: LiveSandbox): readonly StartedCommand[] {
    return this.#options.commands
      .list(sandbox)
      .filter(({ end, request }) => end === undefined && request.tag?.startsWith(TAG) === true);
  }

  async #start(sandbox: LiveSandbox, session: string, cwd: string | undefined): Promise<StartedCommand> {
    const { commands, config } = this.#options;
    const opening = this.#opening.get(sandbox)?.size ?? 0;
    if (this.#running(sandbox).length + opening >= config.maxTerminals) {
      throw new SandboxError("command_limit_reached", `a sandbox can have ${config.maxTerminals} terminals`);
    }
    const { shell } = await sandbox.runtime.user();
    return commands.start(sandbox, {
      path: shell,
      args: ["-l"],
      cwd,
      environment: { TERM: "xterm-256color" },
      terminal: SIZE,
      tag: TAG + session,
    });
  }

  #attachedTo(terminal: StartedCommand): Attached {
    const known = this.#attached.get(terminal.id);
    if (known !== undefined) return known;
    const attached: Attached = { clients: 0, cancelGrace: () => undefined };
    this.#attached.set(terminal.id, attached);
    void terminal.ended.then(() => {
      attached.cancelGrace();
      this.#attached.delete(terminal.id);
    });
    return attached;
  }

  #beginGrace(terminal: StartedCommand, attached: Attached): void {
    const { clock, config } = this.#options;
    if (terminal.end !== undefined) return;
    attached.cancelGrace = clock.after(config.terminalGrace, () => void this.#hangUp(terminal));
  }

  /** A hang-up reaches the jobs of a shell, which have process groups of their own. */
  async #hangUp(terminal: StartedCommand): Promise<void> {
    const ignore = (): void => undefined;
    await terminal.kill("SIGHUP").catch(ignore);
    await fulfilledWithin(terminal.ended, { clock: this.#options.clock, timeoutMs: HANG_UP_MS });
    if (terminal.end === undefined) await terminal.kill("SIGKILL", "group").catch(ignore);
  }
}
