import { type LiveSandbox, SandboxError, unlessAborted, type Sandboxes } from "@coppice/core";
import { type Process, DEFAULT_PATH } from "@coppice/core/backend";
import { REASONS } from "../reasons.js";

/** Marks tar(1) for a later server, which ends it. */
const TAR_LABEL = "commands-v1:tar";

const MAX_ERROR_BYTES = 1_000;
const NOT_FOUND = 127;

interface StartTar {
  readonly args: readonly string[];
  /** Directory of the sandbox that names are relative to. */
  readonly cwd: string;
  readonly input: "pipe" | "none";
  /** Ends it when it aborts: the sandbox may have a tar(1) that does not end by itself. */
  readonly signal: AbortSignal;
}

/** Starts the sandbox's tar(1) as its default user: links and permissions are those of the sandbox. */
export async function startTar(sandbox: LiveSandbox, { signal, ...command }: StartTar): Promise<Process> {
  const env = { PATH: DEFAULT_PATH, LC_ALL: "C" };
  const process = await sandbox.runtime.spawn({ path: "tar", env, label: TAR_LABEL, ...command });
  const end = (): void => void process.kill("SIGKILL", "group").catch(() => undefined);
  signal.addEventListener("abort", end, { once: true });
  void process.exit.then(() => signal.removeEventListener("abort", end));
  if (signal.aborted) end();
  return process;
}

/**
 * The standard output of tar(1). Its other output is kept for an error text.
 * @throws the signal's reason when it aborts, also while another process holds the output open.
 */
export async function* outputOf(
  process: Process,
  told: { text: string },
  signal: AbortSignal,
): AsyncGenerator<Uint8Array> {
  const pieces = process.output[Symbol.asyncIterator]();
  try {
    for (;;) {
      const next = await unlessAborted(signal, () => pieces.next());
      if (next.done === true) return;
      const { stream, data } = next.value;
      if (stream === "stdout") yield data;
      else if (told.text.length < MAX_ERROR_BYTES) told.text += Buffer.from(data).toString();
    }
  } finally {
    // Not awaited: it waits for a read that is under way.
    void pieces.return?.();
  }
}

/** Checks how tar(1) ended. GNU tar exits with 1 for a file that changed while it was read. */
export async function checkExit(
  process: Process,
  { told, allowed }: { readonly told: string; readonly allowed: readonly number[] },
): Promise<void> {
  const { code, signal } = await process.exit;
  if (code !== undefined && allowed.includes(code)) return;
  if (code === NOT_FOUND) throw new SandboxError(REASONS.archive_failed, "the sandbox has no tar");
  if (/no space left|disk quota/i.test(told))
    throw new SandboxError("disk_full", "not enough disk space available");
  const words = told.slice(0, MAX_ERROR_BYTES).trim() || `it ended with ${signal ?? code}`;
  throw new SandboxError(REASONS.archive_failed, `tar failed: ${words}`);
}

/** Ends what a killed server left of its imports and exports. */
export class OrphanCleanup {
  readonly #sandboxes: Sandboxes;
  readonly #looked = new WeakSet<LiveSandbox>();
  readonly #beganAtMs = Date.now();

  constructor(sandboxes: Sandboxes) {
    this.#sandboxes = sandboxes;
  }

  /** Ends tar(1) in the sandboxes of an earlier server: nothing reads or feeds it any more. */
  async endProcesses(): Promise<void> {
    for (const sandbox of this.#sandboxes.list()) {
      if (sandbox.record.startedAtMs >= this.#beganAtMs || this.#looked.has(sandbox)) continue;
      if (sandbox.record.state !== "running") continue;
      this.#looked.add(sandbox);
      for (const process of await sandbox.adopted()) {
        if (process.label === TAR_LABEL) await process.kill("SIGKILL").catch(() => undefined);
      }
    }
  }
}
