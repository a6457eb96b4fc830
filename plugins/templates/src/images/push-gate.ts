import type { IncomingMessage, ServerResponse } from "node:http";
import { Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { z } from "zod";
import { openLoopbackGate, type RegistryGate } from "./registry-gate.js";
import {
  readBounded,
  type RegistryAnswer,
  type RegistryClient,
  type RegistryRequest,
} from "./registry-client.js";

export interface PushGateOptions {
  readonly client: RegistryClient;
  /** Called with the bytes of each part of a blob that is sent on. */
  readonly onBytes: (bytes: number) => void;
}

const BLOB = /^\/v2\/image\/(blobs\/sha256:[0-9a-f]{64})$/;
const MANIFEST = /^\/v2\/image\/(manifests\/[\w.:-]+)$/;
const UPLOADS = "/v2/image/blobs/uploads/";
/** Headers of a request that its registry needs to know. */
const PASSED = ["content-type", "content-length", "content-range"];
/** Headers of an answer that skopeo needs to know. */
const RETURNED = ["content-length", "content-type", "docker-content-digest", "docker-upload-uuid", "range"];
const REFUSAL_BYTES = 64 * 1024;
const LONGEST_REASON = 300;

const refusal = z.object({ errors: z.tuple([z.object({ message: z.string() })]).rest(z.unknown()) });

/**
 * Opens a registry on loopback for one push. A program that pushes talks to it alone, and the gate to the real registry:
 * so the program has no credentials, and reaches no address that the registry or a redirect names.
 */
export async function openPushGate({ client, onBytes }: PushGateOptions): Promise<RegistryGate> {
  /** Addresses of uploads at the registry; skopeo knows their numbers. */
  const uploads: string[] = [];

  const keepUpload = (answer: RegistryAnswer, asked: string, number = uploads.length): string => {
    uploads[number] = new URL(answer.headers.location ?? asked, asked).href;
    return `${UPLOADS}${number}`;
  };

  /** Passes a request on. @returns after the answer. @throws Error for a refusal of the registry */
  const pass = async (
    { path, hasBody }: { readonly path: string; readonly hasBody: boolean },
    request: IncomingMessage,
    response: ServerResponse,
    locate?: (answer: RegistryAnswer) => string,
  ): Promise<void> => {
    const counted = new Transform({
      transform(chunk: Buffer, _encoding, done) {
        onBytes(chunk.length);
        done(null, chunk);
      },
    });
    const sending = hasBody ? pipeline(request, counted) : undefined;
    // Its failure is that of the request to the registry.
    sending?.catch(() => undefined);
    const answer = await client.send({
      method: request.method as RegistryRequest["method"],
      path,
      headers: only(PASSED, request.headers),
      ...(hasBody && { body: counted }),
    });
    const isMissing = request.method === "HEAD" && answer.statusCode === 404;
    if (answer.statusCode >= 300 && !isMissing) throw await refusalOf(answer);
    response.writeHead(answer.statusCode, {
      ...only(RETURNED, answer.headers),
      ...(locate && { location: locate(answer) }),
    });
    await pipeline(answer, response);
  };

  return openLoopbackGate(async (request, response) => {
    const { method = "", url = "" } = request;
    const [path = "", query = ""] = url.split("?");
    const blob = BLOB.exec(path)?.[1];
    const manifest = MANIFEST.exec(path)?.[1];
    if (method === "HEAD" && blob !== undefined) {
      await pass({ path: blob, hasBody: false }, request, response);
    } else if (method === "PUT" && manifest !== undefined) {
      await pass({ path: manifest, hasBody: true }, request, response);
    } else if (method === "POST" && path === UPLOADS) {
      const asked = new URL("blobs/uploads/", client.url).href;
      await pass({ path: asked, hasBody: false }, request, response, (answer) => keepUpload(answer, asked));
    } else if ((method === "PATCH" || method === "PUT") && path.startsWith(UPLOADS)) {
      const number = Number(path.slice(UPLOADS.length));
      const upload = uploads[number];
      if (upload === undefined) throw new Error(`there is no upload '${number}'`);
      const place = new URL(upload);
      for (const [name, value] of new URLSearchParams(query)) place.searchParams.set(name, value);
      await pass({ path: place.href, hasBody: method === "PATCH" }, request, response, (answer) =>
        method === "PATCH" ? keepUpload(answer, upload, number) : path,
      );
    } else response.writeHead(404).end();
  });
}

function only(names: readonly string[], headers: IncomingMessage["headers"]): Record<string, string> {
  return Object.fromEntries(
    names.flatMap((name) => {
      const value = headers[name];
      return typeof value === "string" ? [[name, value]] : [];
    }),
  );
}

/** Why a registry refused a request, in its own words where it has some. */
export async function refusalOf(answer: RegistryAnswer): Promise<Error> {
  const { statusCode } = answer;
  let reason = "";
  try {
    const body: unknown = JSON.parse((await readBounded(answer, REFUSAL_BYTES)).toString());
    const { message } = refusal.parse(body).errors[0];
    // A terminal would obey control characters.
    reason = `: ${message.slice(0, LONGEST_REASON).replaceAll(/\p{C}+/gu, " ")}`;
  } catch {
    answer.destroy();
  }
  const denied = statusCode === 401 || statusCode === 403 ? "access denied" : `it answered ${statusCode}`;
  return new Error(`${denied}${reason}`);
}
