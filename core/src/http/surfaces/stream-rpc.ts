import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from "node:http";
import { create, fromBinary, fromJsonString, type Message, toBinary, toJsonString } from "@bufbuild/protobuf";
import {
  Code,
  ConnectError,
  type ConnectRouter,
  type ContextValues,
  createMethodImplSpec,
  createServiceImplSpec,
  type HandlerContext,
  type MethodImplSpec,
} from "@connectrpc/connect";
import { endStreamToJson } from "@connectrpc/connect/protocol-connect";
import { connectErrorOf } from "../messages/wire-errors.js";
import { holdBytes, releaseBytes } from "../../bounds/held-bodies.js";
import { requireFewParts, messageText } from "./bounded-values.js";
import { writeChunk } from "../messages/send-answer.js";
import type { SurfaceRequest } from "./surface-request.js";

/** An RPC whose answer is a stream, as its plugin implements it. */
export type StreamRpc = Extract<MethodImplSpec, { kind: "server_streaming" }>;

export interface StreamCall {
  readonly request: SurfaceRequest;
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
  readonly values: ContextValues;
  /** Called before the head of the answer is sent. */
  readonly onAnswer: () => void;
}

type Codec = "json" | "proto";

/** Of an envelope of Connect: flags, and the number of the bytes that follow. */
const HEAD_BYTES = 5;
/** Flag of the last envelope. */
const END_STREAM = 0x02;
/** The envelopes of a stream, for a server that passes them on. */
export const ENVELOPE = { headBytes: HEAD_BYTES, endStream: END_STREAM, of: envelope } as const;
const JSON_READ = { ignoreUnknownFields: true };
const BINARY_READ = { readUnknownFields: false };
/** End of a stream without an error and without trailers. */
const PLAIN_END = envelope(END_STREAM, Buffer.from("{}"));

/** Notes the streaming RPCs that are added to a router from now on, by their paths. */
export function noteStreams(router: ConnectRouter): ReadonlyMap<string, StreamRpc> {
  const streams = new Map<string, StreamRpc>();
  const note = (spec: MethodImplSpec): void => {
    const { method } = spec;
    if (spec.kind === "server_streaming") streams.set(`/${method.parent.typeName}/${method.name}`, spec);
  };
  const { service, rpc } = router;
  // Connect's own handler serves those with options.
  router.service = (description, implementation, options) => {
    if (options === undefined)
      for (const spec of Object.values(createServiceImplSpec(description, implementation).methods))
        note(spec);
    return service(description, implementation, options);
  };
  router.rpc = (method, implementation, options) => {
    if (options === undefined) note(createMethodImplSpec(method, implementation));
    return rpc(method, implementation, options);
  };
  return streams;
}

/**
 * Reads the request of a streaming RPC. Connect's handler passes each message through a dozen generators, which takes
 * longer than all else that a short command needs of this server; so the usual request is served here, and every
 * other, such as a compressed or a malformed one, by Connect's.
 * @returns what serves the call, or the chunks of the body that were read when it is one for Connect's handler.
 */
export async function readStreamCall(
  rpc: StreamRpc,
  call: StreamCall,
  limitBytes: number,
): Promise<(() => Promise<void>) | readonly Buffer[]> {
  const { headers } = call.message;
  const codec = codecOf(headers);
  if (codec === undefined) return [];
  const body = await readEnvelope(call.message, limitBytes);
  if (!Buffer.isBuffer(body)) return body;
  const input = parse(rpc, codec, body);
  // An answer tells the error as Connect does.
  if (input === undefined) return [body];
  return () => serve(rpc, codec, input, call);
}

/** Undefined for a request that is not served here. */
function codecOf(headers: IncomingHttpHeaders): Codec | undefined {
  const { "content-type": type, "connect-timeout-ms": timeout = "0" } = headers;
  const isPlain =
    headers["connect-content-encoding"] === undefined &&
    /^\d{1,10}$/.test(String(timeout)) &&
    headers["content-encoding"] === undefined;
  if (!isPlain) return undefined;
  if (type === "application/connect+json") return "json";
  return type === "application/connect+proto" ? "proto" : undefined;
}

/** @returns the only envelope of a body, or else the chunks that were read. */
function readEnvelope(message: IncomingMessage, limitBytes: number): Promise<Buffer | readonly Buffer[]> {
  const { promise, resolve, reject } = Promise.withResolvers<Buffer | readonly Buffer[]>();
  const chunks: Buffer[] = [];
  let bytes = 0;
  /** Of the envelope, once its head is there. */
  let lengthBytes: number | undefined;
  const isWithin = (): boolean => {
    if (bytes < HEAD_BYTES) return true;
    if (lengthBytes === undefined) {
      const [first = Buffer.alloc(0)] = chunks;
      const head = first.length < HEAD_BYTES ? Buffer.concat(chunks) : first;
      lengthBytes = head[0] === 0 ? head.readUInt32BE(1) : Infinity;
    }
    return lengthBytes <= limitBytes && bytes <= HEAD_BYTES + lengthBytes;
  };
  const stop = (): void => void message.off("data", take).off("end", end).off("close", leave).pause();
  const finish = (isWhole: boolean): void => {
    stop();
    const whole = isWhole ? Buffer.concat(chunks) : undefined;
    const isOne = whole !== undefined && bytes >= HEAD_BYTES && whole.readUInt32BE(1) === bytes - HEAD_BYTES;
    // Connect's handler counts what it reads.
    if (!isOne) releaseBytes(message, bytes);
    resolve(isOne ? whole : chunks);
  };
  const take = (chunk: Buffer): void => {
    chunks.push(chunk);
    bytes += chunk.length;
    try {
      holdBytes(message, chunk.length);
      if (!isWithin()) finish(false);
    } catch (error) {
      stop();
      reject(error);
    }
  };
  const end = (): void => finish(true);
  const leave = (): void => finish(false);
  message.on("data", take).on("end", end).on("close", leave);
  return promise;
}

function parse({ method }: StreamRpc, codec: Codec, body: Buffer): Message | undefined {
  const payload = body.subarray(HEAD_BYTES);
  try {
    requireFewParts(payload, codec === "json" ? undefined : method.input);
    if (codec === "json") return fromJsonString(method.input, messageText(payload), JSON_READ);
    return fromBinary(method.input, payload, BINARY_READ);
  } catch {
    return undefined;
  }
}

async function serve(
  { method, impl }: StreamRpc,
  codec: Codec,
  input: Message,
  call: StreamCall,
): Promise<void> {
  const { request, response } = call;
  const context = new StreamContext(method, codec, call);
  const begin = (): void => {
    call.onAnswer();
    response.setHeaders(context.responseHeader);
    response.writeHead(200);
  };
  let error: ConnectError | undefined;
  try {
    for await (const output of impl(input, context)) {
      if (!response.headersSent) begin();
      const sent = create(method.output, output);
      const bytes =
        codec === "json" ? Buffer.from(toJsonString(method.output, sent)) : toBinary(method.output, sent);
      await writeChunk(response, envelope(0, bytes));
      if (response.destroyed) return;
    }
  } catch (thrown) {
    error = connectErrorOf(thrown, context.usedSignal, request.log);
  } finally {
    context.end();
  }
  if (response.destroyed) return;
  if (!response.headersSent) begin();
  const trailer = context.usedTrailer;
  response.end(
    error === undefined && trailer === undefined
      ? PLAIN_END
      : envelope(
          END_STREAM,
          Buffer.from(JSON.stringify(endStreamToJson(trailer ?? new Headers(), error, undefined))),
        ),
  );
}

/** A message of a stream as Connect sends it. */
function envelope(flags: number, payload: Uint8Array): Buffer {
  const bytes = Buffer.allocUnsafe(HEAD_BYTES + payload.length);
  bytes[0] = flags;
  bytes.writeUInt32BE(payload.length, 1);
  bytes.set(payload, HEAD_BYTES);
  return bytes;
}

/** A handler's context that makes only what is asked of it. */
class StreamContext implements HandlerContext {
  readonly service;
  readonly method;
  readonly protocolName = "connect";
  readonly requestMethod = "POST";
  readonly values: ContextValues;
  readonly responseHeader: Headers;
  readonly #call: StreamCall;
  readonly #endsAt: number | undefined;
  #requestHeader: Headers | undefined;
  #trailer: Headers | undefined;
  #controller: AbortController | undefined;
  #stopTimer = (): void => {};
  readonly timeoutMs = (): number | undefined =>
    this.#endsAt === undefined ? undefined : this.#endsAt - Date.now();

  constructor(method: StreamRpc["method"], codec: Codec, call: StreamCall) {
    this.service = method.parent;
    this.method = method;
    this.values = call.values;
    this.#call = call;
    this.responseHeader = new Headers({ "content-type": `application/connect+${codec}` });
    const timeout = call.message.headers["connect-timeout-ms"];
    if (timeout !== undefined) this.#endsAt = Date.now() + Number(timeout);
  }

  get url(): string {
    return this.#call.request.url.href;
  }

  get requestHeader(): Headers {
    this.#requestHeader ??= headersOf(this.#call.message.headers);
    return this.#requestHeader;
  }

  get responseTrailer(): Headers {
    this.#trailer ??= new Headers();
    return this.#trailer;
  }

  /** Undefined when no handler asked for it. */
  get usedTrailer(): Headers | undefined {
    return this.#trailer;
  }

  /** Aborts when the client is gone, at the deadline, and at the end. */
  get signal(): AbortSignal {
    if (this.#controller !== undefined) return this.#controller.signal;
    const controller = new AbortController();
    this.#controller = controller;
    const { signal } = this.#call.request;
    const follow = (): void => controller.abort(signal.reason);
    if (signal.aborted) follow();
    signal.addEventListener("abort", follow, { once: true });
    const leftMs = this.timeoutMs();
    const timer =
      leftMs === undefined
        ? undefined
        : setTimeout(
            () => controller.abort(new ConnectError("the operation timed out", Code.DeadlineExceeded)),
            Math.max(leftMs, 0),
          );
    this.#stopTimer = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", follow);
    };
    return controller.signal;
  }

  /** The signal that the handler's errors may come from. */
  get usedSignal(): AbortSignal {
    return this.#controller?.signal ?? this.#call.request.signal;
  }

  end(): void {
    this.#stopTimer();
    this.#controller?.abort();
  }
}

export function headersOf(headers: IncomingHttpHeaders): Headers {
  const made = new Headers();
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) made.append(name, one);
  }
  return made;
}
