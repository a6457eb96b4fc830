import type { IncomingMessage } from "node:http";
import { pipeline } from "node:stream";
import { createGunzip } from "node:zlib";
import { bodyChunks, messageOf, SandboxError } from "@coppice/core";
import { Busboy, type BusboyFileStream, type BusboyInstance } from "@fastify/busboy";

/** A part of a multipart body. Its content has to be read to the end before the next part. */
export interface MultipartFile {
  /** The form name of the part. */
  readonly field: string;
  /** As sent, directories included: `%22` stays `%22`, as in envd. Empty when the part has none. */
  readonly filename: string;
  readonly content: AsyncIterable<Uint8Array>;
}

export interface MultipartOptions {
  /** The form name of the parts to return: others are skipped. All parts when absent. */
  readonly field?: string | undefined;
  /** Limit of parts of any name. */
  readonly maxParts: number;
}

/**
 * The files of a multipart body, one after the other, read at their consumer's pace.
 * @throws SandboxError invalid_argument for an incomplete or invalid body, or the body's own error, from the generator
 * or from the content of the part that broke off.
 */
export async function* multipartFiles(
  body: AsyncIterable<Uint8Array>,
  contentType: string,
  options: MultipartOptions,
): AsyncGenerator<MultipartFile> {
  const parser = createParser(contentType, options.maxParts);
  // Found by the parser, not yet consumed.
  const waiting: (Pick<MultipartFile, "field" | "filename"> & { readonly stream: BusboyFileStream })[] = [];
  let current: BusboyFileStream | undefined;
  let failure: { readonly error: unknown } | undefined;
  let isFinished = false;
  let isStopped = false;
  // One waiter on each side: the reader of files, and the feeder of the parser.
  let wakeReader = (): void => undefined;
  let wakeFeeder = (): void => undefined;

  const fail = (error: unknown): void => {
    failure ??= { error };
    current?.destroy();
    wakeReader();
  };
  parser.on("file", (field, stream, filename) => {
    // The parser reports a broken part on the part and on itself; unhandled, the former ends the process.
    stream.on("error", () => undefined);
    if (options.field === undefined || field === options.field) {
      waiting.push({ field, filename: filename ?? "", stream });
      wakeReader();
    } else stream.resume();
  });
  parser.on("partsLimit", () =>
    fail(new SandboxError("upload_invalid", `a multipart body can have ${options.maxParts} parts`)),
  );
  parser.on("error", (error) => fail(malformed(error)));
  parser.on("finish", () => {
    isFinished = true;
    wakeReader();
  });

  const isIdle = (): boolean => isStopped || failure !== undefined;
  const feed = async (): Promise<void> => {
    try {
      for await (const chunk of body) {
        await new Promise<void>((resolve) => {
          wakeFeeder = resolve;
          parser.write(chunk, () => resolve());
        });
        // Small parts all fit the parser's buffers: without a pause here they would pile up as fast as the network
        // brings them.
        while (waiting.length > 0 && !isIdle())
          await new Promise<void>((resolve) => {
            wakeFeeder = resolve;
          });
        if (isIdle()) return;
      }
      parser.end();
    } catch (error) {
      fail(error);
    }
  };
  void feed();

  async function* contentOf(stream: BusboyFileStream): AsyncGenerator<Uint8Array> {
    try {
      yield* stream as AsyncIterable<Uint8Array>;
    } catch (error) {
      throw failure === undefined ? error : failure.error;
    }
    if (failure !== undefined) throw failure.error;
  }

  try {
    for (;;) {
      if (failure !== undefined) throw failure.error;
      const next = waiting.shift();
      if (next !== undefined) {
        current = next.stream;
        wakeFeeder();
        yield { field: next.field, filename: next.filename, content: contentOf(next.stream) };
      } else if (isFinished) return;
      else {
        await new Promise<void>((resolve) => {
          wakeReader = resolve;
        });
      }
    }
  } finally {
    isStopped = true;
    wakeFeeder();
    for (const { stream } of waiting) stream.destroy();
    current?.destroy();
  }
}

function createParser(contentType: string, maxParts: number): BusboyInstance {
  try {
    return new Busboy({
      // envd accepts every kind of multipart as form data.
      headers: { "content-type": contentType.replace(/^\s*multipart\/[^;\s]*/i, "multipart/form-data") },
      preservePath: true,
      // Everything is streamed, so that a part without a file name is not collected in memory.
      isPartAFile: () => true,
      limits: { parts: maxParts },
    });
  } catch (error) {
    throw malformed(error);
  }
}

function malformed(error: unknown): SandboxError {
  return new SandboxError("upload_invalid", `error parsing multipart form: ${messageOf(error)}`, {
    cause: error,
  });
}

/**
 * The body of a request, decompressed for `Content-Encoding: gzip`. When its consumer stops early, the rest is skipped:
 * the client gets its answer, and the connection serves its next request.
 * @throws SandboxError invalid_argument for an unknown or broken encoding, canceled when the client goes away;
 * HttpError 413 past the limit, which counts decompressed bytes.
 */
export function requestBody(message: IncomingMessage, limitBytes: number): AsyncIterable<Uint8Array> {
  const coding = (message.headers["content-encoding"] ?? "").trim().toLowerCase() || "identity";
  if (coding !== "gzip" && coding !== "identity")
    throw undecodable(`unsupported Content-Encoding: ${coding}`);
  if (coding === "gzip") return limited(gunzipped(message), limitBytes);
  const length = message.headers["content-length"];
  if (length === undefined) return limited(bodyChunks(message), limitBytes);
  if (Number(length) > limitBytes) throw tooLarge(limitBytes);
  // The parser of HTTP holds it to its length.
  return bodyChunks(message);
}

/**
 * The body of a request when it is here already: small ones come with their headers, and a stream costs more than
 * such a file. Undefined for any other body, which is left as it is.
 */
export function arrivedBody(message: IncomingMessage, limitBytes: number): Buffer | undefined {
  const { "content-encoding": coding, "content-length": length } = message.headers;
  if (!message.complete || coding !== undefined || length === undefined) return undefined;
  const lengthBytes = Number(length);
  if (lengthBytes > limitBytes || message.readableLength !== lengthBytes) return undefined;
  return (message.read() as Buffer | null) ?? Buffer.alloc(0);
}

async function* limited(body: AsyncIterable<Uint8Array>, limitBytes: number): AsyncGenerator<Uint8Array> {
  let readBytes = 0;
  for await (const chunk of body) {
    readBytes += chunk.length;
    if (readBytes > limitBytes) throw tooLarge(limitBytes);
    yield chunk;
  }
}

async function* gunzipped(message: IncomingMessage): AsyncGenerator<Uint8Array> {
  const gunzip = createGunzip();
  // Its errors are those of what is read below.
  pipeline(bodyChunks(message), gunzip, () => undefined);
  try {
    yield* gunzip as AsyncIterable<Uint8Array>;
  } catch (error) {
    throw error instanceof SandboxError ? error : undecodable(messageOf(error));
  }
}

function undecodable(reason: string): SandboxError {
  return new SandboxError("upload_invalid", `error decompressing request body: ${reason}`);
}

function tooLarge(limitBytes: number): SandboxError {
  return new SandboxError("body_too_large", `the upload is larger than ${limitBytes} bytes`);
}
