import { randomUUID } from "node:crypto";
import {
  type Clock,
  type Logger,
  messageOf,
  SandboxError,
  type Sandboxes,
  BoundedBytes,
} from "@coppice/core";
import { type Commands, pageBytes, type StartCommand } from "@coppice/plugin-commands";
import { exitCodeOf } from "../commands/command-body.js";
import type { CommandsV1Config } from "../commands-v1-config.js";
import { createWithWorkdir } from "../sandboxes/create-body.js";
import type { CommandsV1Store, Run } from "../store/commands-v1-store.js";
import { REASONS } from "../reasons.js";

interface OneShotRunsOptions {
  readonly store: () => CommandsV1Store["runs"];
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly clock: Clock;
  readonly log: Logger;
  readonly config: CommandsV1Config;
}

interface StartRun {
  readonly owner: string;
  readonly template: string;
  readonly command: StartCommand & { readonly timeoutMs: number };
  /** Aborted when the client leaves. */
  readonly signal: AbortSignal;
}

export interface RunOutput {
  readonly stdout: string;
  readonly stderr: string;
  readonly truncated: boolean;
}

/** The sandbox ends by itself when the server is gone for so long after the command's time-out. */
const SPARE_MS = 60_000;
const PAGE_BYTES = 256 * 1024;

/** One-shot runs: a sandbox is created, runs one command, and is removed. Results are kept for a while. */
export class OneShotRuns {
  readonly #options: OneShotRunsOptions;
  /** Runs that this server waits for. */
  readonly #finishing = new Map<string, Promise<Run>>();
  /** Outputs that are being read, for all who ask meanwhile. */
  readonly #reading = new Map<string, Promise<RunOutput>>();

  constructor(options: OneShotRunsOptions) {
    this.#options = options;
  }

  /** @throws SandboxError the errors of a creation and of `Commands.start`; nothing is left then. */
  async start({ owner, template, command, signal }: StartRun): Promise<Run> {
    const { store, sandboxes, commands, clock, config } = this.#options;
    const askedAtMs = clock.now();
    const own = sandboxes.of(owner);
    const wanted = {
      template,
      timeoutMs: command.timeoutMs + SPARE_MS,
      secure: true,
      metadata: { "created-by": "commands-v1 one-shot run" },
    };
    const { workdir } = config;
    const sandbox = await createWithWorkdir(own, wanted, { workdir, signal });
    const createMs = clock.now() - askedAtMs;
    const sandboxId = sandbox.record.id;
    try {
      const { id: commandId } = await commands.start(sandbox, { ...command, cwd: command.cwd ?? workdir });
      const run = {
        id: randomUUID(),
        owner,
        sandboxId,
        commandId,
        phase: "running",
        askedAtMs,
        createMs,
      } as const;
      store().put(run);
      void this.finished(run);
      return run;
    } catch (error) {
      await own.kill(sandboxId).catch(() => undefined);
      throw error;
    }
  }

  has(owner: string, id: string): boolean {
    return this.#options.store().has({ owner, id });
  }

  /** @throws SandboxError not_found for an unknown run, and for one of another owner. */
  find(owner: string, id: string): Run {
    const run = this.#options.store().get({ owner, id });
    if (run !== undefined) return run;
    throw new SandboxError(REASONS.run_not_found, "there is no such run");
  }

  /** Resolves when the command has ended and its sandbox is removed. */
  finished(run: Run): Promise<Run> {
    if (run.cleanupMs !== undefined) return Promise.resolve(run);
    const known = this.#finishing.get(run.id);
    if (known !== undefined) return known;
    const finishing = this.#finish(run).finally(() => this.#finishing.delete(run.id));
    this.#finishing.set(run.id, finishing);
    // A failure is tried again by `check`; those who wait see it.
    finishing.catch((error: unknown) => {
      this.#options.log.warn(
        { run: run.id, reason: messageOf(error) },
        "a one-shot run could not be finished",
      );
    });
    return finishing;
  }

  /** Ends a run, and forgets it. */
  async remove(run: Run): Promise<void> {
    const finishing = this.#finishing.get(run.id);
    await this.#removeSandbox(run);
    await finishing?.catch(() => undefined);
    this.#options.store().remove({ id: run.id });
  }

  /** The output of a run so far, each stream up to `maxRunOutput`. */
  output(run: Run): Promise<RunOutput> {
    // What was asked for before the end may lack the last bytes.
    const key = `${run.id} ${run.phase}`;
    const known = this.#reading.get(key);
    if (known !== undefined) return known;
    const reading = this.#readOutput(run).finally(() => this.#reading.delete(key));
    this.#reading.set(key, reading);
    return reading;
  }

  async #readOutput({ sandboxId, commandId }: Run): Promise<RunOutput> {
    const { commands, config } = this.#options;
    const logs = commands.log(sandboxId);
    let hasGap = false;
    const stdout = new BoundedBytes(config.maxRunOutput);
    const stderr = new BoundedBytes(config.maxRunOutput);
    for (let cursor = 0; !stdout.isFull || !stderr.isFull;) {
      const page = await logs.page(commandId, { cursor, limitBytes: PAGE_BYTES });
      if (page.nextCursor === cursor) break;
      cursor = page.nextCursor;
      hasGap ||= page.truncatedBefore !== undefined;
      stdout.push(pageBytes(page, { wanted: "stdout", isText: false }).bytes);
      stderr.push(pageBytes(page, { wanted: "stderr", isText: false }).bytes);
    }
    const truncated = hasGap || stdout.isTruncated || stderr.isTruncated;
    return { stdout: stdout.text, stderr: stderr.text, truncated };
  }

  /** Finishes runs of an earlier server, and forgets old ones. */
  check(): void {
    const { store, clock, config } = this.#options;
    for (const run of store().all({ cleanupMs: undefined })) this.finished(run).catch(() => undefined);
    store().remove({ cleanupMs: { not: undefined }, askedAtMs: { "<": clock.now() - config.runsKept } });
  }

  async #finish(run: Run): Promise<Run> {
    const { store, sandboxes, commands, clock } = this.#options;
    const sandbox = sandboxes.find(run.sandboxId);
    const running = sandbox && commands.list(sandbox).find(({ id }) => id === run.commandId);
    await running?.ended;
    const logged = await commands.log(run.sandboxId).find({ id: run.commandId });
    const isExpired = running?.expired.aborted === true;
    const endedAtMs = logged.end?.endedAtMs ?? clock.now();
    const ended: Run = {
      ...run,
      phase: logged.phase === "running" ? "lost" : logged.phase,
      exitCode: exitCodeOf(logged) ?? undefined,
      ...(isExpired && { error: "the command timed out" }),
      execMs: endedAtMs - logged.startedAtMs,
    };
    const beganAtMs = clock.now();
    await this.#removeSandbox(run);
    const finished = { ...ended, cleanupMs: clock.now() - beganAtMs };
    store().put(finished);
    return finished;
  }

  async #removeSandbox({ sandboxId }: Run): Promise<void> {
    await this.#options.sandboxes.kill(sandboxId).catch((error: unknown) => {
      // The backend may still have to remove it: the server keeps trying.
      if (!(error instanceof SandboxError)) throw error;
    });
  }
}
