import type { Frame } from "./connect-frames.js";
import type { EnvdClient, EnvdStreamOptions } from "./envd-client.js";

/** One event of a process stream as it is on the wire. */
export interface WireProcessEvent {
  readonly start?: { readonly pid: number };
  readonly data?: { readonly stdout?: string; readonly stderr?: string; readonly pty?: string };
  readonly end?: unknown;
  readonly keepalive?: unknown;
}

/** Content of a whole process stream. */
export interface ProcessStory {
  /** The names of its events, in order. */
  readonly names: readonly string[];
  readonly pid: number;
  readonly stdout: string;
  readonly stderr: string;
  readonly pty: string;
  /** As it is on the wire; undefined when the last event is none. */
  readonly end: unknown;
  /** The EndStream message; undefined when the last frame is none. */
  readonly trailer: unknown;
}

/** A process whose stream is open. */
export interface OpenProcess {
  readonly pid: number;
  /** Selects it in a request. */
  readonly selector: { readonly process: { readonly pid: number } };
  /** The next event. @throws Error when the stream is over. */
  next(): Promise<WireProcessEvent>;
  /** The story from here to the end. */
  rest(): Promise<ProcessStory>;
}

/** A `Start` request that runs a script. */
export function shellRequest(script: string, more: object = {}, settings: object = {}) {
  return { process: { cmd: "/bin/sh", args: ["-c", script], ...settings }, ...more };
}

export async function processStory(frames: AsyncIterable<Frame>): Promise<ProcessStory> {
  const all = await Array.fromAsync(frames);
  const events = all.filter(({ flags }) => flags === 0).map(eventOf);
  const output = (name: "stdout" | "stderr" | "pty") =>
    Buffer.concat(events.map(({ data }) => Buffer.from(data?.[name] ?? "", "base64"))).toString();
  const last = all.at(-1);
  return {
    names: events.map((event) => Object.keys(event)[0] ?? ""),
    pid: events[0]?.start?.pid ?? 0,
    stdout: output("stdout"),
    stderr: output("stderr"),
    pty: output("pty"),
    end: events.at(-1)?.end,
    trailer: last?.flags === 2 ? last.message : undefined,
  };
}

/** Starts a process and reads its stream until its pid is there. */
export async function openProcess(
  envd: EnvdClient,
  request: unknown,
  { method = "Start", ...options }: EnvdStreamOptions & { readonly method?: "Start" | "Connect" } = {},
): Promise<OpenProcess> {
  const frames = envd.stream(`process.Process/${method}`, request, options);
  const next = async (): Promise<WireProcessEvent> => {
    const { value, done } = await frames.next();
    if (done === true) throw new Error("the stream is over");
    if (value.flags !== 0) throw new Error(`the stream ends: ${JSON.stringify(value.message)}`);
    return eventOf(value);
  };
  const pid = (await next()).start?.pid ?? 0;
  return { pid, selector: { process: { pid } }, next, rest: () => processStory(frames) };
}

function eventOf({ message }: Frame): WireProcessEvent {
  return (message as { readonly event: WireProcessEvent }).event;
}
