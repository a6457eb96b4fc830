import { createHash, randomBytes } from "node:crypto";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { Transform } from "node:stream";
import { pipeline } from "node:stream/promises";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { parseJson, secretEqual } from "@coppice/core";
import { z } from "zod";
import { type JsonLimits, readBounded, type RegistryAnswer, type RegistryClient } from "./registry-client.js";

/** An open gate. */
export interface RegistryGate extends AsyncDisposable {
  /** `127.0.0.1:<port>`. Its one repository is `image`. */
  readonly address: string;
  readonly username: string;
  readonly password: string;
  /** Reason for the first refusal, if there was one. The message is for the client. */
  readonly refusal: Error | undefined;
}

const USERNAME = "skopeo";

/**
 * Opens a registry on loopback for one program and one image.
 * @param serve answers a request that has the gate's account; what it throws is the refusal.
 */
export async function openLoopbackGate(
  serve: (request: IncomingMessage, response: ServerResponse) => Promise<void>,
): Promise<RegistryGate> {
  const password = randomBytes(24).toString("base64url");
  const expected = `Basic ${Buffer.from(`${USERNAME}:${password}`).toString("base64")}`;
  const state: { refusal: Error | undefined } = { refusal: undefined };
  const server = createServer((request, response) => {
    if (!secretEqual(expected, request.headers.authorization ?? "")) {
      response.writeHead(401, { "www-authenticate": 'Basic realm="gate"' }).end();
    } else if (request.url === "/v2/") response.writeHead(200).end();
    else {
      serve(request, response).catch((error: unknown) => {
        state.refusal ??= error instanceof Error ? error : new Error(String(error));
        if (response.headersSent) response.destroy();
        else response.writeHead(403).end();
      });
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return {
    address: `127.0.0.1:${port}`,
    username: USERNAME,
    password,
    get refusal() {
      return state.refusal;
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}

/** A manifest as a registry sent it. */
export interface Manifest {
  /** `sha256:` and 64 hexadecimal digits: what it was asked for with, or what it has. */
  readonly digest: string;
  readonly type: string;
  readonly body: Buffer;
}

interface RegistryGateOptions extends JsonLimits {
  readonly client: RegistryClient;
  /** Answered without another request. */
  readonly manifest: Manifest;
  /** Of all layers together, as they are transferred. */
  readonly maxBytes: number;
  readonly maxLayers: number;
  /** Called with the bytes of all layers that have come, and of those that will. */
  readonly onBytes: (done: number, total: number) => void;
  readonly onLayer: (digest: string, bytes: number) => void;
}

const PATH = /^\/v2\/image\/(manifests|blobs)\/(sha256:[0-9a-f]{64})$/;
/** The transfer of less is not worth a line. */
const NOTED_BYTES = 64 * 1024;

/**
 * A field `urls` anywhere: a puller fetches from such addresses itself. Go takes keys of any case. Found in the text, as
 * going through all values of a hostile manifest would hold up the event loop.
 */
const ADDRESSES =
  /"(?:u|\\u00[57]5)(?:r|\\u00[57]2)(?:l|\\u00[46]c)(?:s|\u017f|\\u00[57]3|\\u017f)"\s*:(?!\s*null)/i;

const layered = z.object({ layers: z.array(z.object({ size: z.number() })).optional() });

/**
 * Opens a registry on loopback for one pull. A program that pulls talks to it alone, and the gate to the real registry:
 * so the program has no credentials, and reaches no address that the image, the registry or a redirect names.
 */
export async function openRegistryGate(options: RegistryGateOptions): Promise<RegistryGate> {
  const transfers = new Transfers(options);
  return openLoopbackGate(async (request, response) => {
    const [, kind, digest = ""] = PATH.exec(request.url ?? "") ?? [];
    if (kind === undefined || request.method !== "GET") response.writeHead(404).end();
    else if (kind === "manifests") await transfers.manifest(digest, response);
    else await transfers.blob(digest, response);
  });
}

/** The transfers of one pull, within its limits. */
class Transfers {
  readonly #options: RegistryGateOptions;
  #bytes = 0;
  #blobs = 0;
  #total = 0;

  constructor(options: RegistryGateOptions) {
    this.#options = options;
    this.#total = checkManifest(options.manifest.body, options);
  }

  async manifest(digest: string, response: ServerResponse): Promise<void> {
    const { client, manifest: known, maxMetadata } = this.#options;
    const { type, body } =
      digest === known.digest
        ? known
        : await readManifest(await client.get(`manifests/${digest}`), digest, maxMetadata);
    this.#total = checkManifest(body, this.#options);
    response.writeHead(200, { "content-type": type, "docker-content-digest": digest });
    response.end(body);
  }

  async blob(digest: string, response: ServerResponse): Promise<void> {
    const { client, maxBytes, maxLayers, onBytes, onLayer } = this.#options;
    this.#blobs += 1;
    // One is the configuration.
    if (this.#blobs > maxLayers + 1) throw tooManyLayers(maxLayers);
    const answer = await client.get(`blobs/${digest}`);
    if (answer.statusCode !== 200) {
      answer.destroy();
      throw new Error(`its registry answered ${answer.statusCode} for ${digest}`);
    }
    const { "content-length": length } = answer.headers;
    if (Number(length) > NOTED_BYTES) onLayer(digest, Number(length));
    response.writeHead(200, {
      "content-type": "application/octet-stream",
      ...(length !== undefined && { "content-length": length }),
    });
    const counter = new Transform({
      transform: (chunk: Buffer, _encoding, done) => {
        this.#bytes += chunk.length;
        onBytes(Math.min(this.#bytes, this.#total), this.#total);
        done(this.#bytes > maxBytes ? tooLarge(maxBytes) : null, chunk);
      },
    });
    await pipeline(answer, counter, response);
  }
}

/** Reads a manifest. @param wanted digest that it must have. @throws Error for another digest, status or size */
export async function readManifest(
  answer: RegistryAnswer,
  wanted: string | undefined,
  mostBytes: number,
): Promise<Manifest> {
  const body = await readBounded(answer, mostBytes);
  if (answer.statusCode !== 200) throw new Error(`its registry answered ${answer.statusCode} for a manifest`);
  const digest = `sha256:${createHash("sha256").update(body).digest("hex")}`;
  if (wanted !== undefined && digest !== wanted)
    throw new Error(`its registry sent ${digest} instead of ${wanted}`);
  return { digest, type: answer.headers["content-type"] ?? "application/json", body };
}

/** @returns the bytes of its layers. @throws Error for a manifest beyond the limits, or with contents that are elsewhere */
function checkManifest(body: Buffer, { maxBytes, maxLayers, maxValues }: RegistryGateOptions): number {
  if (ADDRESSES.test(body.toString())) throw new Error("it has layers outside of its registry");
  const parsed = parseJson(body, maxValues);
  const { data: { layers = [] } = {} } = layered.safeParse(parsed);
  if (layers.length > maxLayers) throw tooManyLayers(maxLayers);
  const bytes = layers.reduce((sum, { size }) => sum + size, 0);
  if (bytes > maxBytes) throw tooLarge(maxBytes);
  return bytes;
}

function tooManyLayers(most: number): Error {
  return new Error(`it has more than ${most} layers`);
}

function tooLarge(most: number): Error {
  return new Error(`its layers have more than ${most} bytes`);
}
