import { type AgentConnection, startHostAgent } from "@coppice/agent";
import { SandboxError, type Signal, unlessAborted } from "@coppice/core";
import { OutputLines } from "../model/output-lines.js";

export interface HostRun {
  readonly args: readonly string[];
  readonly cwd: string;
  readonly environment: Readonly<Record<string, string>>;
  /** Ends the program, and whatever it started. */
  readonly signal: AbortSignal;
  /** Takes each line of its output, while it runs. */
  readonly onLine?: (line: string) => void;
}

export interface HostResult {
  /** 127 when the program is missing, undefined when a signal ended it. */
  readonly code: number | undefined;
  /** The end of its output. */
  readonly output: string;
}

const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const OUTPUT_BYTES = 16 * 1024;
/** Time that a program has to remove what it has made. */
const KILL_GRACE_MS = 10_000;

/**
 * Programs of the host that make images. A small process of its own starts them, and ends them when this one ends, so
 * that the server never forks.
 */
export class HostPrograms {
  #agent: Promise<AgentConnection> | undefined;
  #isClosed = false;

  /** Runs a program until it exits. @param path or a name in PATH. @throws the signal's reason, SandboxError unavailable */
  async run(path: string, { args, cwd, environment, signal, onLine }: HostRun): Promise<HostResult> {
    signal.throwIfAborted();
    const agent = await this.#connect();
    const started = await agent.spawn({
      path,
      args,
      cwd,
      env: { PATH, LC_ALL: "C.UTF-8", ...environment },
      input: "none",
    });
    let killing: NodeJS.Timeout | undefined;
    const kill = (how: Signal): void => void started.kill(how, "group").catch(() => undefined);
    const end = (): void => {
      kill("SIGTERM");
      killing = setTimeout(kill, KILL_GRACE_MS, "SIGKILL");
    };
    signal.addEventListener("abort", end, { once: true });
    try {
      let output = Buffer.alloc(0);
      const lines = new OutputLines((_stream, line) => onLine?.(line));
      // A child that it leaves behind does not hold this up: the abort ends it, too.
      await unlessAborted(signal, async () => {
        for await (const piece of started.output) {
          output = Buffer.concat([output, piece.data]).subarray(-OUTPUT_BYTES);
          lines.push(piece);
        }
      });
      lines.end();
      const { code } = await started.exit;
      if (agent.isOver)
        throw new SandboxError("agent_unavailable", `the host's agent ended while ${path} ran`);
      return { code, output: output.toString() };
    } catch (error) {
      await started.exit;
      throw error;
    } finally {
      signal.removeEventListener("abort", end);
      clearTimeout(killing);
    }
  }

  /** Ends all programs. Later calls fail. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const agent = await this.#agent?.catch(() => undefined);
    await agent?.close();
  }

  async #connect(): Promise<AgentConnection> {
    if (this.#isClosed) throw new SandboxError("server_stopping", "the server is stopping");
    const known = await this.#agent?.catch(() => undefined);
    if (known !== undefined && !known.isOver) return known;
    if (known !== undefined) this.#agent = undefined;
    this.#agent ??= startHostAgent().catch((error: unknown) => {
      this.#agent = undefined;
      throw error;
    });
    return this.#agent;
  }
}
