import { once } from "node:events";
import type { Writable } from "node:stream";
import { exitCodeOfStatus } from "@coppice/core/client";
import type { Sandbox } from "e2b";

/** A program in a sandbox, started without a shell. */
export interface Program {
  readonly cmd: string;
  readonly args?: readonly string[];
  readonly envs?: Readonly<Record<string, string>>;
  readonly cwd?: string | undefined;
  readonly user?: string | undefined;
}

export interface Streams {
  /** Standard input; undefined for none. The program sees its end. */
  readonly input?: AsyncIterable<Uint8Array> | undefined;
  /** With a size the program has a terminal. */
  readonly terminal?: TerminalSize | undefined;
  readonly stdout: Writable;
  readonly stderr: Writable;
  /** Gets the program as soon as it runs. */
  readonly onStart?: (running: RunningProgram) => void;
  readonly signal?: AbortSignal;
}

export interface TerminalSize {
  readonly cols: number;
  readonly rows: number;
}

export interface RunningProgram {
  /** Sends SIGTERM. */
  terminate(): Promise<void>;
  resize(size: TerminalSize): Promise<void>;
}

/** The number of SIGTERM in envd's protocol. */
const TERMINATE = 15;
/** Proxies on the way take a stream for dead after minutes of silence. */
const KEEPALIVE = { "keepalive-ping-interval": "30" };

/**
 * Runs a program to its end, with its output byte by byte, and as fast as the outputs take it. The SDK's own way
 * (`commands.run`) decodes output as text and starts a shell, so this calls the RPC client below it.
 * @returns its exit code, or 128 and the number of the signal that ended it. @throws the SDK's errors, ConnectError
 */
export async function attach(sandbox: Sandbox, program: Program, streams: Streams): Promise<number> {
  const rpc = sandbox.commands["rpc"];
  const { user, cmd, args = [], envs = {}, cwd } = program;
  const { input, terminal, stdout, stderr, onStart, signal } = streams;
  const events = rpc.start(
    {
      process: { cmd, args: [...args], envs, ...(cwd !== undefined && { cwd }) },
      stdin: input !== undefined,
      ...(terminal && { pty: { size: terminal } }),
    },
    {
      headers: {
        ...KEEPALIVE,
        ...(user !== undefined && { authorization: `Basic ${Buffer.from(`${user}:`).toString("base64")}` }),
      },
      ...(signal && { signal }),
    },
  );
  let unread: Error | undefined;
  for await (const { event } of events) {
    if (event?.event.case === "start") {
      const process = { selector: { case: "pid", value: event.event.value.pid } } as const;
      onStart?.({
        terminate: async () => void (await rpc.sendSignal({ process, signal: TERMINATE })),
        resize: async (size) => void (await rpc.update({ process, pty: { size } })),
      });
      if (input !== undefined)
        void feed(rpc, process, { input, kind: terminal ? "pty" : "stdin" }).catch((error: unknown) => {
          unread = error instanceof Error ? error : new Error(String(error));
        });
    } else if (event?.event.case === "data") {
      const { output } = event.event.value;
      const stream = output.case === "stderr" ? stderr : stdout;
      if (output.value !== undefined && !stream.write(output.value)) await once(stream, "drain");
    } else if (event?.event.case === "end") {
      const { exited, exitCode, status } = event.event.value;
      if (unread !== undefined) throw unread;
      return exited ? exitCode : exitCodeOfStatus(status);
    }
  }
  throw new Error("the connection broke before the program ended");
}

/** Passes input on, as fast as the program takes it, and then its end. @throws the error of the input */
async function feed(
  rpc: Sandbox["commands"]["rpc"],
  process: { readonly selector: { readonly case: "pid"; readonly value: number } },
  { input, kind }: { readonly input: AsyncIterable<Uint8Array>; readonly kind: "pty" | "stdin" },
): Promise<void> {
  // One that fails has ended, or reads no more: its own stream reports how.
  const isTaken = (call: Promise<unknown>) =>
    call.then(
      () => true,
      () => false,
    );
  try {
    for await (const value of input)
      if (!(await isTaken(rpc.sendInput({ process, input: { input: { case: kind, value } } })))) return;
  } finally {
    if (kind === "stdin") await isTaken(rpc.closeStdin({ process }));
  }
}
