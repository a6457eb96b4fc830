import type { IncomingMessage } from "node:http";
import type { z } from "zod";
import { SandboxError } from "../../kernel/errors.js";
import { MOST_VALUES, TooManyValues, ValueCount } from "../../kernel/parse-json.js";
import { parseInput } from "./input.js";
import { holdBytes } from "../../bounds/held-bodies.js";

export interface JsonBodyOptions {
  /** Bytes; a longer body is answered with 413. */
  readonly limitBytes?: number;
  /** Value of an absent body; without it an empty body is unreadable JSON. */
  readonly empty?: unknown;
}

const DEFAULT_LIMIT_BYTES = 1024 * 1024;

/** Whole bodies of messages that may be passed on to another server after that; undefined before they are read. */
const bodies = new WeakMap<IncomingMessage, Buffer | undefined>();

/** Keeps the body of a message, once it is read, as long as the message. */
export function keepBody(message: IncomingMessage): void {
  bodies.set(message, undefined);
}

/** The body of a message that was kept and read by `readBody`. */
export function bodyOf(message: IncomingMessage): Buffer | undefined {
  return bodies.get(message);
}

/**
 * The body of a request as it arrives. Where its consumer stops early, the rest is skipped: the client gets its answer, and
 * the connection serves its next request.
 * @param begun what was read of it before.
 * @throws SandboxError client_gone when the client leaves before the last byte.
 */
export async function* bodyChunks(
  message: IncomingMessage,
  begun: readonly Buffer[] = [],
): AsyncGenerator<Buffer> {
  try {
    yield* begun;
    // Otherwise leaving the loop destroys the message: its socket goes with it, or its parser reads nothing more from that.
    yield* message.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>;
  } catch (error) {
    throw new SandboxError("client_gone", "the client is gone", { cause: error });
  } finally {
    message.resume();
  }
}

/** Reads a whole request body. @throws SandboxError body_too_large past the limit, server_busy without room for it. */
export function readBody(message: IncomingMessage, limitBytes: number): Promise<Buffer> {
  return read(message, limitBytes, () => undefined);
}

/**
 * Reads a whole request body that is JSON, for a parser of its own: very many values would hold up the event loop.
 * @throws SandboxError as `readBody`, request_invalid for a body with very many values.
 */
export function readJsonText(message: IncomingMessage, limitBytes: number): Promise<Buffer> {
  const values = new ValueCount(MOST_VALUES);
  return read(message, limitBytes, (chunk) => {
    try {
      values.add(chunk);
    } catch (error) {
      if (!(error instanceof TooManyValues)) throw error;
      const text = `validation error: the body has more than ${MOST_VALUES} values`;
      throw new SandboxError("request_invalid", text, { cause: error });
    }
  });
}

async function read(
  message: IncomingMessage,
  limitBytes: number,
  check: (chunk: Buffer) => void,
): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let lengthBytes = 0;
  for await (const chunk of bodyChunks(message)) {
    lengthBytes += chunk.length;
    holdBytes(message, chunk.length);
    if (lengthBytes > limitBytes) {
      throw new SandboxError("body_too_large", `the request body is larger than ${limitBytes} bytes`);
    }
    check(chunk);
    chunks.push(chunk);
  }
  const body = Buffer.concat(chunks, lengthBytes);
  if (bodies.has(message)) bodies.set(message, body);
  return body;
}

/**
 * Reads and validates a JSON request body.
 * @throws SandboxError invalid_argument with E2B's texts: `Error when parsing request: …` for invalid JSON, `validation
 * error: …` for a wrong shape or very many values; body_too_large past the limit.
 */
export async function readJsonBody<S extends z.ZodType>(
  message: IncomingMessage,
  schema: S,
  options: JsonBodyOptions = {},
): Promise<z.infer<S>> {
  const body = await readJsonText(message, options.limitBytes ?? DEFAULT_LIMIT_BYTES);
  let value: unknown;
  if (body.length === 0 && "empty" in options) value = options.empty;
  else {
    try {
      value = JSON.parse(body.toString());
    } catch (error) {
      throw new SandboxError("json_invalid", `Error when parsing request: ${(error as Error).message}`, {
        cause: error,
      });
    }
  }
  return parseInput(schema, value);
}
