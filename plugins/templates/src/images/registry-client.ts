import { type ClientRequest, type IncomingMessage, request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import type { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { Socket } from "node:net";
import { failedConnection, paceAnswer, parseJson } from "@coppice/core";
import { z } from "zod";
import type { TemplatesConfig } from "../templates-config.js";
import { type RegistryAccess, RegistryRefused, type Repository } from "./registry-access.js";
import type { RegistryLogin } from "./registry-login.js";
import type { Agents } from "./registry-proxy.js";

/** Limits of JSON that a registry sends. */
export interface JsonLimits {
  readonly maxMetadata: number;
  readonly maxValues: number;
}

/** Reads a stream to its end. @throws Error when it has more bytes than that; the stream is destroyed then. */
export async function readBounded(stream: AsyncIterable<Uint8Array>, mostBytes: number): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += chunk.byteLength;
    if (bytes > mostBytes) throw new Error(`the answer has more than ${mostBytes} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** Reads a stream of JSON. @throws Error when it is no JSON, or has more than the limits. */
export async function readJson(
  stream: AsyncIterable<Uint8Array>,
  { maxMetadata, maxValues }: JsonLimits,
): Promise<unknown> {
  return parseJson(await readBounded(stream, maxMetadata), maxValues);
}

interface RegistryClientOptions {
  readonly access: RegistryAccess;
  readonly repository: Repository;
  readonly login: RegistryLogin | undefined;
  /** True to ask for the permission to write with the first request: some registries hide a new repository without it. */
  readonly writes?: boolean;
  readonly settings: Pick<TemplatesConfig["images"], "idleTimeout" | "minRate">;
  readonly signal: AbortSignal;
}

export interface RegistryRequest {
  readonly method: "GET" | "HEAD" | "POST" | "PATCH" | "PUT" | "DELETE";
  /** In the repository, `manifests/<version>`, or an address that an answer has named. */
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent once: with it, an answer of 401 is final. */
  readonly body?: Readable;
}

/** Answer of a registry. Its body has to be read or destroyed. */
export type RegistryAnswer = IncomingMessage & { readonly statusCode: number };

const MANIFEST_TYPES = [
  "application/vnd.oci.image.index.v1+json",
  "application/vnd.oci.image.manifest.v1+json",
  "application/vnd.docker.distribution.manifest.list.v2+json",
  "application/vnd.docker.distribution.manifest.v2+json",
].join(", ");
const MOST_REDIRECTS = 5;
const TOKEN_BYTES = 64 * 1024;

const tokenAnswer = z
  .object({ token: z.string().optional(), access_token: z.string().optional() })
  .transform(({ token, access_token }) => token ?? access_token ?? "");

/**
 * Speaks to one repository of a registry: authenticates as the registry asks for it, and follows redirects where the
 * settings allow it. Credentials stay in this process.
 */
export class RegistryClient implements Disposable {
  readonly #options: RegistryClientOptions;
  readonly #agents: Agents;
  #authorization: Promise<string | undefined> = Promise.resolve(undefined);

  constructor(options: RegistryClientOptions) {
    this.#options = options;
    this.#agents = options.access.proxy.open();
  }

  /** `https://registry.example.com/v2/library/debian/` */
  get url(): URL {
    return this.#options.repository.url;
  }

  /**
   * Requests `manifests/<version>` or `blobs/<digest>`. An answer of 401 is final: what there was for an authentication
   * has been tried.
   * @throws RegistryRefused, an Error of the connection, the signal's reason.
   */
  async get(path: string): Promise<RegistryAnswer> {
    const accept = path.startsWith("manifests/") ? MANIFEST_TYPES : "*/*";
    return this.send({ method: "GET", path, headers: { accept } });
  }

  /** @throws as `get` */
  async send(request: RegistryRequest): Promise<RegistryAnswer> {
    const used = this.#authorization;
    const { answer, isOwn } = await this.#follow(request, await used);
    // A host that a redirect leads to does not say who gets the account.
    if (answer.statusCode !== 401 || request.body !== undefined || !isOwn) return answer;
    const { "www-authenticate": challenge = "" } = answer.headers;
    answer.destroy();
    // Another request may have authenticated meanwhile.
    if (this.#authorization === used) this.#authorization = this.#authenticate(challenge);
    return (await this.#follow(request, await this.#authorization)).answer;
  }

  [Symbol.dispose](): void {
    this.#agents[Symbol.dispose]();
  }

  /** @returns the last answer, and whether it is that of the registry itself. */
  async #follow(
    request: RegistryRequest,
    authorization: string | undefined,
  ): Promise<{ readonly answer: RegistryAnswer; readonly isOwn: boolean }> {
    const { method, path, headers = {}, body } = request;
    const { url } = this.#options.repository;
    const isRead = method === "GET" || method === "HEAD";
    let place = urlOf(path, url);
    for (let redirects = 0; redirects <= MOST_REDIRECTS; redirects += 1) {
      const isOwn = place.host === url.host;
      const answer = await this.#request(
        place,
        { ...headers, ...(isOwn && authorization !== undefined && { authorization }) },
        { method, body },
      );
      const { location } = answer.headers;
      const isRedirect = isRead && [301, 302, 303, 307, 308].includes(answer.statusCode);
      if (!isRedirect || location === undefined) return { answer, isOwn };
      answer.destroy();
      place = urlOf(location, place);
    }
    throw new RegistryRefused(`'${url.host}' redirects without an end`);
  }

  /** @returns the header that a challenge asks for; undefined when there are no credentials for it. */
  async #authenticate(challenge: string): Promise<string | undefined> {
    const { login, repository } = this.#options;
    const basic = login && `Basic ${Buffer.from(`${login.username}:${login.password}`).toString("base64")}`;
    const [, scheme = "", rest = ""] = /^\s*(\w+)\s*(.*)$/s.exec(challenge) ?? [];
    if (scheme.toLowerCase() !== "bearer") return basic;
    const parameters = Object.fromEntries(
      // Without `\b`, a long word would be tried from each of its letters.
      [...rest.matchAll(/\b(\w+)="([^"]*)"/g)].map(([, name = "", value = ""]) => [
        name.toLowerCase(),
        value,
      ]),
    );
    if (parameters["realm"] === undefined) return basic;
    const realm = urlOf(parameters["realm"], repository.url);
    if (parameters["service"] !== undefined) realm.searchParams.set("service", parameters["service"]);
    const name = repository.url.pathname.slice("/v2/".length, -1);
    const asked = `repository:${name}:${this.#options.writes === true ? "pull,push" : "pull"}`;
    const { scope = asked } = parameters;
    realm.searchParams.set("scope", this.#options.writes === true ? asked : scope);
    const answer = await this.#request(realm, {
      accept: "application/json",
      ...(basic !== undefined && { authorization: basic }),
    });
    const body = await readBounded(answer, TOKEN_BYTES);
    if ([400, 401, 403].includes(answer.statusCode)) return undefined;
    if (answer.statusCode !== 200) throw new Error(`'${realm.host}' answered ${answer.statusCode}`);
    return `Bearer ${tokenAnswer.parse(JSON.parse(body.toString()))}`;
  }

  async #request(
    url: URL,
    headers: Readonly<Record<string, string>>,
    {
      method = "GET",
      body,
    }: Partial<Pick<RegistryRequest, "method">> & { readonly body?: Readable | undefined } = {},
  ): Promise<RegistryAnswer> {
    const { access, repository, settings, signal } = this.#options;
    const { idleTimeout: idleTimeoutMs, minRate: bytesPerSecond } = settings;
    const lookup = await access.check(url, repository);
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<RegistryAnswer>();
    const isHttps = url.protocol === "https:";
    let answered: IncomingMessage | undefined;
    const request = (isHttps ? requestHttps : requestHttp)(
      url,
      {
        method,
        headers: { "user-agent": "coppice", ...headers },
        // A body cannot be sent again where a kept connection has just been closed.
        agent: this.#agents.of(url, body !== undefined),
        timeout: idleTimeoutMs,
        signal,
        ...(lookup && { lookup }),
      },
      (answer) => {
        answered = answer;
        // An answer has a status.
        resolve(answer as RegistryAnswer);
      },
    );
    const giveUp = (how: string): void => {
      (answered ?? request).destroy(new Error(`'${url.host}' has been ${how} for too long`));
    };
    paceAnswer(request);
    request.on("timeout", () => giveUp("silent"));
    // It may be silent for half of this time.
    requireRate(request, { windowMs: 2 * idleTimeoutMs, bytesPerSecond, onSlow: () => giveUp("slow") });
    request.on("error", (error) => {
      if (signal.aborted) reject(signal.reason as Error);
      else reject(access.proxy.isFor(url) ? ofProxy(error, url) : ofTarget(error, url));
    });
    // Without an answer or an error: it has tried to change the protocol.
    request.on("close", () => reject(new Error(`'${url.host}' does not speak HTTP`)));
    if (body === undefined) request.end();
    // Its failure is an error of the request, too.
    else pipeline(body, request).catch(() => undefined);
    return promise;
  }
}

function urlOf(text: string, base: URL): URL {
  if (!URL.canParse(text, base.href)) throw new RegistryRefused(`'${base.host}' leads to an invalid address`);
  return new URL(text, base);
}

function ofTarget(error: Error, { host }: URL): Error {
  if (!("code" in error)) return error;
  return new Error(`'${host}': ${failedConnection(error)}`, { cause: error });
}

/** The failure of a request through the proxy, without the proxy's address, which is no client's business. */
function ofProxy(error: NodeJS.ErrnoException, { host }: URL): Error {
  const [, status] = /: HTTP\/\d\.\d (\d{3})/.exec(error.message) ?? [];
  if (error.code === "ERR_PROXY_TUNNEL" && status !== undefined)
    return new Error(`the proxy of this server answered ${status} for '${host}'`, { cause: error });
  if (error.syscall === undefined) return error;
  return new Error(`the proxy of this server cannot be reached (${error.code})`, { cause: error });
}

interface LeastRate {
  /** Time over which bytes are counted, in both directions. */
  readonly windowMs: number;
  readonly bytesPerSecond: number;
  /** Called in the first window with fewer bytes. */
  readonly onSlow: () => void;
}

/** Watches until its end whether a request moves bytes: a peer that sends one now and then is never silent. */
function requireRate(request: ClientRequest, { windowMs, bytesPerSecond, onSlow }: LeastRate): void {
  let before = 0;
  const timer = setInterval(() => {
    const moved = movedBy(request.socket);
    if (moved - before < (bytesPerSecond * windowMs) / 1000) onSlow();
    before = moved;
  }, windowMs);
  // A connection that was kept has moved bytes of earlier requests.
  request.once("socket", (socket) => (before = movedBy(socket)));
  request.once("close", () => clearInterval(timer));
}

function movedBy(socket: Socket | null): number {
  return socket === null ? 0 : socket.bytesRead + socket.bytesWritten;
}
