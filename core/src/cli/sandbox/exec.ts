import { once } from "node:events";
import { z } from "zod";
import { messageOf, SandboxError } from "../../kernel/errors.js";
import { exitCodeOfStatus } from "../../sandbox/contract/exit-report.js";
import { sandboxAction, namedValues } from "./sandbox-action.js";
import { printFailure } from "../terminal.js";
import type { ServerRequest } from "../../plugin/plugin.js";
import { ApiFailure } from "./sandbox-client.js";
import { ConnectError } from "@connectrpc/connect";
import { encodeEnvelope, transformSplitEnvelope } from "@connectrpc/connect/protocol";

/** The code that `docker exec` and `timeout` use, too: commands rarely exit with it. */
const EXIT_NOT_RUN = 125;
const EXIT_INTERRUPTED = 130;

/** Proxies on the way take a stream for dead after minutes of silence. */
const KEEPALIVE_SECONDS = "30";

const bytes = z.base64().optional();
const processEvent = z.object({
  event: z.object({
    start: z.object({ pid: z.number() }).optional(),
    data: z.object({ stdout: bytes, stderr: bytes }).optional(),
    end: z
      .object({ exitCode: z.number().default(0), exited: z.boolean().default(false), status: z.string() })
      .optional(),
  }),
});

/** Runs a program in a sandbox, streams its output, and exits with its code. */
export const exec = sandboxAction({
  usage: "<id> [--cwd /dir] [--user name] [--env NAME=value]… [--no-stdin] [--json] -- <program> [argument]…",
  failed: EXIT_NOT_RUN,
  notFound: EXIT_NOT_RUN,
  options: {
    "cwd": { type: "string" },
    "user": { type: "string" },
    "env": { type: "string", multiple: true, default: [] },
    "json": { type: "boolean", default: false },
    "no-stdin": { type: "boolean", default: false },
  },
  takesArguments: true,
  async run(client, { values, positionals }) {
    const [id, cmd, ...more] = positionals;
    if (id === undefined || cmd === undefined)
      throw new SandboxError("usage_invalid", "name a sandbox and a program");
    const envs = namedValues("--env", values.env);
    const command = { cmd, args: more, envs, ...(values.cwd === undefined ? {} : { cwd: values.cwd }) };
    // A terminal is not passed on: its input would arrive line by line and never end.
    const stdin = !values["no-stdin"] && !process.stdin.isTTY;
    const envd = await client.envd(id);
    const stream = await envd({
      method: "POST",
      path: "/process.Process/Start",
      body: connectRequest({ process: command, stdin }),
      headers: {
        "content-type": "application/connect+json",
        "connect-protocol-version": "1",
        "keepalive-ping-interval": KEEPALIVE_SECONDS,
        ...(values.user === undefined
          ? {}
          : { authorization: `Basic ${Buffer.from(`${values.user}:`).toString("base64")}` }),
      },
    });
    return follow(stream, { envd, stdin, asJson: values.json });
  },
});

interface FollowOptions {
  readonly envd: (request: ServerRequest) => Promise<Response>;
  readonly stdin: boolean;
  readonly asJson: boolean;
}

/** @returns the exit code of the command, or 128 plus the number of the signal that ended it. */
async function follow({ body }: Response, { envd, stdin, asJson }: FollowOptions): Promise<number> {
  if (body === null) throw new ApiFailure("the answer is empty");
  let pid: number | undefined;
  let isInterrupted = false;
  const onInterrupt = (): void => {
    if (isInterrupted || pid === undefined) process.exit(EXIT_INTERRUPTED);
    isInterrupted = true;
    envd({
      method: "POST",
      path: "/process.Process/SendSignal",
      body: { process: { pid }, signal: "SIGNAL_SIGTERM" },
    }).catch((error: unknown) => printFailure(messageOf(error)));
  };
  process.on("SIGINT", onInterrupt);
  process.on("SIGTERM", onInterrupt);
  try {
    for await (const message of connectMessages(body)) {
      const { start, data, end } = processEvent.parse(message).event;
      if (start !== undefined) {
        ({ pid } = start);
        if (stdin) void passStdin(pid, envd);
      }
      if (asJson) await write(process.stdout, `${JSON.stringify(message)}\n`);
      else if (data?.stdout !== undefined) await write(process.stdout, Buffer.from(data.stdout, "base64"));
      else if (data?.stderr !== undefined) await write(process.stderr, Buffer.from(data.stderr, "base64"));
      if (end !== undefined) return end.exited ? end.exitCode : exitCodeOfStatus(end.status);
    }
    throw new ApiFailure("the stream ended before the command");
  } catch (error) {
    // fetch throws a TypeError when the connection breaks during the body.
    if (error instanceof TypeError)
      throw new ApiFailure(`the connection broke: ${messageOf(error)}`, { cause: error });
    throw error;
  } finally {
    process.off("SIGINT", onInterrupt);
    process.off("SIGTERM", onInterrupt);
    // The writer of a pipe may keep it open.
    if (stdin) process.stdin.destroy();
  }
}

/** Passes the stdin of this process to the command, as fast as the command takes it, and then its end. */
async function passStdin(pid: number, envd: FollowOptions["envd"]): Promise<void> {
  const call = (method: string, input: object) =>
    envd({ method: "POST", path: `/process.Process/${method}`, body: { process: { pid }, ...input } });
  try {
    for await (const chunk of process.stdin as AsyncIterable<Buffer>)
      await call("SendInput", { input: { stdin: chunk.toString("base64") } });
    await call("CloseStdin", {});
  } catch {
    // The command has ended or reads no more; its own stream reports how.
  }
}

/** Waits for a slow reader, which slows the command down. */
async function write(stream: NodeJS.WriteStream, data: string | Uint8Array): Promise<void> {
  if (!stream.write(data)) await once(stream, "drain");
}

const END_OF_STREAM = 0b10;
const MAX_BYTES = 0xffff_ffff;

const endOfStream = z.object({
  error: z.object({ code: z.string(), message: z.string().default("") }).optional(),
});

/** The body of a streaming request: one message in Connect's envelope. */
function connectRequest(message: unknown): Uint8Array<ArrayBuffer> {
  return new Uint8Array(encodeEnvelope(0, Buffer.from(JSON.stringify(message))));
}

/**
 * The messages of a Connect stream in JSON (connectrpc.com/docs/protocol).
 * @throws ApiFailure with the error that ended the stream, or when it breaks off.
 */
async function* connectMessages(body: AsyncIterable<Uint8Array>): AsyncGenerator<unknown> {
  try {
    for await (const { flags, data } of transformSplitEnvelope(MAX_BYTES)(body)) {
      const message: unknown = JSON.parse(Buffer.from(data).toString());
      if ((flags & END_OF_STREAM) === 0) {
        yield message;
        continue;
      }
      const { error } = endOfStream.parse(message);
      if (error === undefined) return;
      throw new ApiFailure(`${error.code}: ${error.message}`);
    }
  } catch (error) {
    // It ends inside an envelope.
    if (!(error instanceof ConnectError)) throw error;
  }
  throw new ApiFailure("the connection broke");
}
