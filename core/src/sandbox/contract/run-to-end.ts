import { setTimeout as delay } from "node:timers/promises";
import { unlessAborted } from "../../kernel/time.js";
import type { Exit, Output, Process } from "./process.js";

export interface RunToEnd {
  /** Ends the wait at once with its reason, and the process with whatever it started. */
  readonly signal?: AbortSignal;
  /** Asks the process to end, and ends it after a while. */
  readonly stop?: AbortSignal;
  /** Output that it has not taken yet slows the process. */
  readonly onOutput?: (output: Output) => void | Promise<void>;
  /** Standard input. A piece must not change until `MOST_WRITES` later ones were asked for. */
  readonly input?: AsyncIterable<Uint8Array> | undefined;
}

/** Pieces of input that are on their way at one time. */
export const MOST_WRITES = 8;
/** A process that another one leaves behind may hold its output open for ever. */
const LINGERING_MS = 1_000;
/** Time that a process gets to end when it is asked to. */
const STOP_MS = 10_000;

/**
 * Reads the output of a process until it exits, and what it has written before. Output that nobody takes is dropped.
 * @throws the signal's reason, what `onOutput` or `input` throws: the process is killed then.
 */
export async function runToEnd(process: Process, run: RunToEnd): Promise<Exit> {
  const { signal = new AbortController().signal, stop } = run;
  const end = (): void => void stopProcess(process);
  stop?.addEventListener("abort", end, { once: true });
  if (stop?.aborted === true) end();
  try {
    return await unlessAborted(signal, () => attend(process, run));
  } catch (error) {
    await process.kill("SIGKILL", "group").catch(() => undefined);
    throw error;
  } finally {
    stop?.removeEventListener("abort", end);
  }
}

async function attend(process: Process, { input, onOutput, signal }: RunToEnd): Promise<Exit> {
  const output = process.output[Symbol.asyncIterator]();
  const read = async (): Promise<void> => {
    for (let next = await output.next(); next.done !== true; next = await output.next()) {
      if (signal?.aborted !== true) await onOutput?.(next.value);
    }
  };
  const reading = read();
  // What cannot take the output ends the process.
  const [exit] = await Promise.race([
    Promise.all([process.exit, input && feed(process, input)]),
    reading.then(() => new Promise<never>(() => undefined)),
  ]);
  if (onOutput !== undefined) await Promise.race([reading, delay(LINGERING_MS, undefined, { ref: false })]);
  // Nobody waits for the rest.
  void output.return?.();
  return exit;
}

async function stopProcess(process: Process): Promise<void> {
  const kill = async (signal: "SIGTERM" | "SIGKILL"): Promise<void> =>
    process.kill(signal, "group").catch(() => undefined);
  await kill("SIGTERM");
  await Promise.race([process.exit, delay(STOP_MS, undefined, { ref: false })]);
  await kill("SIGKILL");
}

/** A process that exits before it has read all has its reason in its exit. */
async function feed(process: Process, input: AsyncIterable<Uint8Array>): Promise<void> {
  const pending: Promise<boolean>[] = [];
  for await (const chunk of input) {
    const isTaken = process.write(chunk).then(
      () => true,
      () => false,
    );
    // Several at a time: after each one, the sandbox would wait for the next.
    pending.push(isTaken);
    if (pending.length >= MOST_WRITES && !(await pending.shift())) return;
  }
  await Promise.all(pending);
  await process.closeInput();
}
