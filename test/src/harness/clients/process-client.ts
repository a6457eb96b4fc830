import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";

/** How messages of `process.Process` are encoded: as the SDKs do, or as binary protobuf. */
export type Codec = "json" | "proto";

export interface StartedProgram {
  readonly cmd: string;
  readonly args?: readonly string[];
  /** No stdin when absent. */
  readonly stdin?: boolean;
  /** In a terminal of 80 by 24. */
  readonly pty?: boolean;
}

/** One event of a process stream; exactly one field is set. Keepalives are left out. */
export interface ProcessEvent {
  readonly pid?: number;
  readonly stdout?: Buffer;
  readonly stderr?: Buffer;
  readonly pty?: Buffer;
  /** The exit code. */
  readonly end?: number;
}

export interface StreamedInput {
  readonly pid: number;
  readonly channel: "stdin" | "pty";
  readonly codec: Codec;
  readonly pieces: Iterable<Buffer>;
}

const END_OF_STREAM = 2;

/** Streams of `process.Process` over plain HTTP, in either codec, at the reader's pace. */
export class ProcessClient {
  readonly #url: string;
  readonly #headers: Readonly<Record<string, string>>;

  /** @param headers address the sandbox. */
  constructor(url: string, headers: Readonly<Record<string, string>>) {
    this.#url = url;
    this.#headers = headers;
  }

  /**
   * Starts a program; leaving the loop hangs up.
   * @throws Error with the error in the last message of the stream.
   */
  start(program: StartedProgram, codec: Codec): AsyncGenerator<ProcessEvent> {
    return this.#stream("Start", codec, codec === "json" ? startJson(program) : startProto(program));
  }

  /** Follows a program that runs; as `start`. */
  connect(pid: number, codec: Codec): AsyncGenerator<ProcessEvent> {
    const proto = field(1, number(1, pid));
    return this.#stream("Connect", codec, codec === "json" ? JSON.stringify({ process: { pid } }) : proto);
  }

  async *#stream(method: string, codec: Codec, message: string | Buffer): AsyncGenerator<ProcessEvent> {
    const outgoing = this.#request(method, `application/connect+${codec}`);
    outgoing.end(frame(message));
    const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
    try {
      for await (const payload of messages(answer)) yield* eventsOf(payload, codec);
    } finally {
      outgoing.destroy();
    }
  }

  /** Sends input to a program in one StreamInput; resolves when it has taken all of it. */
  async input({ pid, channel, codec, pieces }: StreamedInput, signal?: AbortSignal): Promise<void> {
    const outgoing = this.#request("StreamInput", `application/connect+${codec}`);
    const answered = once(outgoing, "response") as Promise<[IncomingMessage]>;
    const frames = (function* () {
      if (codec === "json") {
        yield frame(JSON.stringify({ start: { process: { pid } } }));
        for (const piece of pieces) {
          yield frame(JSON.stringify({ data: { input: { [channel]: piece.toString("base64") } } }));
        }
      } else {
        yield frame(field(1, field(1, number(1, pid))));
        const place = channel === "stdin" ? 1 : 2;
        for (const piece of pieces) yield frame(field(2, field(2, field(place, piece))));
      }
    })();
    answered.catch(() => undefined);
    await pipeline(Readable.from(frames, { highWaterMark: 1 }), outgoing, { ...(signal && { signal }) });
    const [answer] = await answered;
    for await (const _ of messages(answer));
  }

  async closeStdin(pid: number): Promise<void> {
    const outgoing = this.#request("CloseStdin", "application/json");
    outgoing.end(JSON.stringify({ process: { pid } }));
    const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
    answer.resume();
    if (answer.statusCode !== 200) throw new Error(`CloseStdin: ${answer.statusCode}`);
  }

  #request(method: string, contentType: string) {
    const { hostname, port } = new URL(this.#url);
    const outgoing = httpRequest({
      hostname,
      port,
      method: "POST",
      path: `/process.Process/${method}`,
      headers: { ...this.#headers, "content-type": contentType, "connect-protocol-version": "1" },
      agent: false,
    });
    // A reset during the answer is an error of the request as well as of the answer; the answer's is read.
    outgoing.on("error", () => undefined);
    return outgoing;
  }
}

function frame(payload: string | Buffer): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(Buffer.byteLength(payload), 1);
  return Buffer.concat([head, Buffer.from(payload)]);
}

/** The messages of a Connect stream. @throws Error when it fails, or ends without its last message. */
async function* messages(answer: IncomingMessage): AsyncGenerator<Buffer> {
  let chunks: Buffer[] = [];
  let length = 0;
  let wanted = 5;
  let hasEnded = false;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    chunks.push(chunk);
    length += chunk.length;
    if (length < wanted) continue;
    let bytes = Buffer.concat(chunks);
    for (wanted = wantedOf(bytes); bytes.length >= wanted; wanted = wantedOf(bytes)) {
      const payload = bytes.subarray(5, wanted);
      if (bytes.readUInt8(0) === END_OF_STREAM) {
        hasEnded = true;
        const { error } = JSON.parse(payload.toString()) as { readonly error?: unknown };
        if (error !== undefined) throw new Error(`the stream failed: ${JSON.stringify(error)}`);
      } else yield payload;
      bytes = bytes.subarray(wanted);
    }
    chunks = [bytes];
    length = bytes.length;
  }
  if (!hasEnded) throw new Error(`HTTP ${answer.statusCode}: the stream broke off`);
}

/** Bytes up to the end of the first message. */
function wantedOf(bytes: Buffer): number {
  return bytes.length < 5 ? 5 : 5 + bytes.readUInt32BE(1);
}

function startJson({ cmd, args, stdin = false, pty = false }: StartedProgram): string {
  const size = { cols: 80, rows: 24 };
  return JSON.stringify({ process: { cmd, args }, stdin, ...(pty && { pty: { size } }) });
}

function startProto({ cmd, args = [], stdin = false, pty = false }: StartedProgram): Buffer {
  const process = [field(1, cmd), ...args.map((argument) => field(2, argument))];
  const size = Buffer.concat([number(1, 80), number(2, 24)]);
  return Buffer.concat([
    field(1, Buffer.concat(process)),
    ...(pty ? [field(2, field(1, size))] : []),
    number(4, stdin ? 1 : 0),
  ]);
}

function* eventsOf(payload: Buffer, codec: Codec): Generator<ProcessEvent> {
  if (codec === "proto") {
    for (const [place, event] of fieldsOf(fieldsOf(payload).get(1) as Buffer)) {
      const fields = fieldsOf(event as Buffer);
      if (place === 1) yield { pid: Number(fields.get(1)) };
      // A sint32: the sign is its lowest bit.
      if (place === 3) yield { end: Number(fields.get(1) ?? 0) / 2 };
      if (place !== 2) continue;
      for (const [stream, data] of fields) {
        yield { [["", "stdout", "stderr", "pty"][stream] ?? ""]: data as Buffer };
      }
    }
    return;
  }
  const { event } = JSON.parse(payload.toString()) as {
    readonly event: {
      readonly start?: { readonly pid: number };
      readonly data?: Readonly<Record<string, string>>;
      readonly end?: { readonly exitCode?: number };
    };
  };
  if (event.start !== undefined) yield { pid: event.start.pid };
  for (const [stream, data] of Object.entries(event.data ?? {})) {
    yield { [stream]: Buffer.from(data, "base64") };
  }
  if (event.end !== undefined) yield { end: event.end.exitCode ?? 0 };
}

// The part of protobuf that is needed here: numbers, and fields with a length.

function varint(value: number): Buffer {
  const bytes: number[] = [];
  for (let rest = value; ; rest = Math.floor(rest / 128)) {
    if (rest < 128) return Buffer.from([...bytes, rest]);
    bytes.push((rest % 128) + 128);
  }
}

function number(place: number, value: number): Buffer {
  return Buffer.concat([varint(place * 8), varint(value)]);
}

function field(place: number, content: string | Buffer): Buffer {
  const bytes = Buffer.from(content);
  return Buffer.concat([varint(place * 8 + 2), varint(bytes.length), bytes]);
}

function fieldsOf(message: Buffer): ReadonlyMap<number, number | Buffer> {
  const fields = new Map<number, number | Buffer>();
  let at = 0;
  const readVarint = (): number => {
    for (let value = 0, factor = 1; ; factor *= 128) {
      const byte = message.readUInt8(at++);
      value += (byte % 128) * factor;
      if (byte < 128) return value;
    }
  };
  while (at < message.length) {
    const key = readVarint();
    const value = readVarint();
    if (key % 8 === 0) fields.set(key >> 3, value);
    else fields.set(key >> 3, message.subarray(at, (at += value)));
  }
  return fields;
}
