import type { IncomingMessage } from "node:http";
import { createGunzip } from "node:zlib";
import { SandboxError, messageOf } from "@coppice/core";

/**
 * The body of a request, decompressed for `Content-Encoding: gzip`. When its consumer stops early, the rest is skipped:
 * the client gets its answer, and the connection serves its next request.
 * @throws SandboxError invalid_argument for an unknown or broken encoding, canceled when the client goes away;
 * HttpError 413 past the limit, which counts decompressed bytes.
 */
export function requestBody(message: IncomingMessage, limitBytes: number): AsyncIterable<Uint8Array> {
  const coding = (message.headers["content-encoding"] ?? "").trim().toLowerCase() || "identity";
  if (coding !== "gzip" && coding !== "identity") {
    throw undecodable(`unsupported Content-Encoding: ${coding}`);
  }
  if (coding === "gzip") return limited(gunzipped(message), limitBytes);
  const length = message.headers["content-length"];
  if (length === undefined) return limited(received(message), limitBytes);
  if (Number(length) > limitBytes) throw tooLarge(limitBytes);
  // The parser of HTTP holds it to its length.
  return received(message);
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

async function* received(message: IncomingMessage): AsyncGenerator<Uint8Array> {
  try {
    // By default leaving the loop destroys the message, and with it the socket that the answer needs.
    yield* message.iterator({ destroyOnReturn: false }) as AsyncIterable<Uint8Array>;
  } catch (error) {
    throw new SandboxError("client_gone", "the client went away", { cause: error });
  } finally {
    // The rest of the body stands between the answer and the connection's next request.
    message.resume();
  }
}

async function* gunzipped(message: IncomingMessage): AsyncGenerator<Uint8Array> {
  const gunzip = createGunzip();
  // Not stream.pipeline: it destroys the message when decompression fails, and no answer gets out.
  const onLost = (): void => {
    if (!message.complete) gunzip.destroy(new SandboxError("client_gone", "the client went away"));
  };
  message.once("close", onLost);
  message.on("error", onLost);
  message.pipe(gunzip);
  try {
    yield* gunzip as AsyncIterable<Uint8Array>;
  } catch (error) {
    throw error instanceof SandboxError ? error : undecodable(messageOf(error));
  } finally {
    message.unpipe(gunzip);
    message.off("close", onLost);
    gunzip.destroy();
    message.resume();
  }
}

function undecodable(reason: string): SandboxError {
  return new SandboxError("upload_invalid", `error decompressing request body: ${reason}`);
}

function tooLarge(limitBytes: number): SandboxError {
  return new SandboxError("body_too_large", `the upload is larger than ${limitBytes} bytes`);
}
