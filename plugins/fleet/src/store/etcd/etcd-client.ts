import { Agent as HttpAgent, type IncomingMessage, request as requestHttp } from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import { z } from "zod";
import { parsedText, StoreUnavailable, UnknownOutcome } from "../fleet-store.js";

interface EtcdClientOptions {
  /** URLs of members, `https://10.0.0.1:2379`. */
  readonly endpoints: readonly string[];
  /** Undefined where the cluster asks for none. */
  readonly login: { readonly user: string; readonly password: string } | undefined;
  /** PEM texts for members on https. */
  readonly tls: { readonly ca?: string; readonly cert?: string; readonly key?: string };
  readonly timeoutMs: number;
}

interface MemberAnswer<T> {
  readonly endpoint: string;
  readonly answer?: T;
  /** True where the host says that nothing listens there. */
  readonly isAbsent: boolean;
  readonly error?: unknown;
}

/** A refusal by etcd, with the number of its gRPC code. */
export class EtcdRefusal extends Error {
  override readonly name = "EtcdRefusal";

  constructor(
    readonly code: number,
    message: string,
  ) {
    super(message);
  }
}

export const NOT_FOUND = 5;
const UNAUTHENTICATED = 16;
/** Of a token that names a former state of users and roles; its code is that of any wrong request. */
const TOKEN_IS_OLD = "revision of auth store is old";
/** Codes of a member that could not do it: another one may. Not of a majority that may have done it. */
const ELSEWHERE = [14];

/** A request for which no connection was made. */
class NotSent extends Error {
  /** True when the host said that nothing listens there. */
  readonly isRefused: boolean;

  constructor(cause: Error) {
    super(cause.message, { cause });
    this.isRefused = (cause as NodeJS.ErrnoException).code === "ECONNREFUSED";
  }
}

const refusal = z.object({ code: z.int().default(2), message: z.string() });
const streamed = z.union([
  z.object({ result: z.unknown() }),
  z.object({ error: z.union([z.string(), z.object({ message: z.string() })]) }),
]);
const authenticated = z.object({ token: z.string() });

/** Longest message of a stream: etcd splits those of a watch at 2 MiB, which are 3 MiB in base64. */
const MOST_LINE_BYTES = 4 * 2 ** 20;

/** Largest answer of another kind, which is parsed in one turn of the event loop: a value has 1.5 MiB at most. */
const MOST_ANSWER_BYTES = 4 * 2 ** 20;

/** An answer with more bytes than its reader takes. */
export class AnswerTooLarge extends Error {
  override readonly name = "AnswerTooLarge";
}

/** Characters of an answer that is not etcd's that an error has. */
const MOST_TOLD = 200;

/**
 * Speaks etcd's JSON gateway (`/v3/*`, gRPC as JSON: numbers of 64 bits are strings, keys and values are base64). Stays
 * at a member as long as that one answers.
 */
export class EtcdClient {
  readonly #options: EtcdClientOptions;
  readonly #agents;
  #current = 0;
  #token: Promise<string> | undefined;

  constructor(options: EtcdClientOptions) {
    this.#options = options;
    this.#agents = {
      "http:": new HttpAgent({ keepAlive: true }),
      "https:": new HttpsAgent({ keepAlive: true, ...options.tls }),
    };
  }

  /**
   * @param limitMs time for one answer, where there is less than usual.
   * @param canRepeat true for what may be done twice, so that another member is asked when one is silent.
   * @throws EtcdRefusal; StoreUnavailable when no member answers, or because of AnswerTooLarge; UnknownOutcome for what must
   * not be repeated; the signal's reason.
   */
  async call<T extends z.ZodType>(
    path: string,
    body: object,
    {
      schema,
      canRepeat,
      limitMs = this.#options.timeoutMs,
      signal,
    }: {
      readonly schema: T;
      readonly canRepeat: boolean;
      readonly limitMs?: number;
      readonly signal?: AbortSignal;
    },
  ): Promise<z.infer<T>> {
    let last: unknown;
    for (const endpoint of this.#byTurn()) {
      const limit = AbortSignal.timeout(Math.min(limitMs, this.#options.timeoutMs));
      const ended = signal === undefined ? limit : AbortSignal.any([limit, signal]);
      try {
        const answer = await this.#request(endpoint, path, { body, signal: ended });
        return schema.parse(JSON.parse(await textOf(answer, MOST_ANSWER_BYTES)));
      } catch (error) {
        signal?.throwIfAborted();
        // Another member's would be as large.
        if (error instanceof AnswerTooLarge && canRepeat) throw new StoreUnavailable(error);
        if (error instanceof EtcdRefusal && !ELSEWHERE.includes(error.code)) throw error;
        this.#leave(endpoint);
        last = error;
        if (!canRepeat && !(error instanceof NotSent)) throw new UnknownOutcome(error);
      }
    }
    throw new StoreUnavailable(last);
  }

  /** Asks every member for itself. @returns what each has answered, or why it has not. */
  async callEach<T extends z.ZodType>(
    path: string,
    { schema, signal }: { readonly schema: T; readonly signal: AbortSignal },
  ): Promise<readonly MemberAnswer<z.infer<T>>[]> {
    const limit = AbortSignal.any([signal, AbortSignal.timeout(this.#options.timeoutMs)]);
    return Promise.all(
      this.#options.endpoints.map(async (endpoint): Promise<MemberAnswer<z.infer<T>>> => {
        try {
          const answer = await this.#request(endpoint, path, { body: {}, signal: limit });
          return {
            endpoint,
            answer: schema.parse(JSON.parse(await textOf(answer, MOST_ANSWER_BYTES))),
            isAbsent: false,
          };
        } catch (error) {
          return { endpoint, isAbsent: error instanceof NotSent && error.isRefused, error };
        }
      }),
    );
  }

  /** The messages of a stream. Ends with the connection. @throws as `call`. */
  async *stream<T extends z.ZodType>(
    path: string,
    body: object,
    { schema, signal }: { readonly schema: T; readonly signal: AbortSignal },
  ): AsyncGenerator<z.infer<T>> {
    const endpoint = this.#byTurn()[0] ?? "";
    let answer: IncomingMessage;
    try {
      answer = await this.#request(endpoint, path, { body, signal });
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof EtcdRefusal && !ELSEWHERE.includes(error.code)) throw error;
      this.#leave(endpoint);
      throw new StoreUnavailable(error);
    }
    try {
      for await (const line of linesOf(answer)) {
        const message = streamed.parse(JSON.parse(line));
        if ("result" in message) yield schema.parse(message.result);
        else throw new StoreUnavailable(message.error);
      }
    } catch (error) {
      signal.throwIfAborted();
      this.#leave(endpoint);
      throw error instanceof StoreUnavailable ? error : new StoreUnavailable(error);
    } finally {
      answer.destroy();
    }
  }

  close(): void {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }

  /** All members, the one in use first. */
  #byTurn(): readonly string[] {
    const { endpoints } = this.#options;
    return endpoints.map((_, index) => endpoints[(this.#current + index) % endpoints.length] ?? "");
  }

  /** The next request asks another member first, unless one did so already. */
  #leave(endpoint: string): void {
    const { endpoints } = this.#options;
    if (endpoints[this.#current] === endpoint) this.#current = (this.#current + 1) % endpoints.length;
  }

  async #request(
    endpoint: string,
    path: string,
    { body, signal }: { readonly body: object; readonly signal: AbortSignal },
  ): Promise<IncomingMessage> {
    const { login } = this.#options;
    if (login === undefined) return this.#post(endpoint, path, { body, signal });
    const used = (this.#token ??= this.#authenticate(endpoint, login, signal));
    try {
      return await this.#post(endpoint, path, { body, signal, token: await used });
    } catch (error) {
      // A member forgets tokens when it restarts, and they expire; the refusal came before anything was done.
      if (this.#token === used) this.#token = undefined;
      if (!isOfToken(error)) throw error;
      this.#token ??= this.#authenticate(endpoint, login, signal);
      return this.#post(endpoint, path, { body, signal, token: await this.#token });
    }
  }

  async #authenticate(
    endpoint: string,
    { user: name, password }: NonNullable<EtcdClientOptions["login"]>,
    signal: AbortSignal,
  ): Promise<string> {
    const answer = await this.#post(endpoint, "auth/authenticate", { body: { name, password }, signal });
    return authenticated.parse(JSON.parse(await textOf(answer, MOST_ANSWER_BYTES))).token;
  }

  /** Resolves with the answer of a success, whose body is to be read or destroyed. */
  async #post(
    endpoint: string,
    path: string,
    { body, signal, token }: { readonly body: object; readonly signal: AbortSignal; readonly token?: string },
  ): Promise<IncomingMessage> {
    const url = new URL(`/v3/${path}`, endpoint);
    const isTls = url.protocol === "https:";
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    let isSent = false;
    const request = (isTls ? requestHttps : requestHttp)(
      url,
      {
        method: "POST",
        headers: { "content-type": "application/json", ...(token && { authorization: token }) },
        agent: this.#agents[isTls ? "https:" : "http:"],
        signal,
      },
      resolve,
    );
    request.once("socket", (socket) => {
      if (!socket.connecting) isSent = true;
      else socket.once(isTls ? "secureConnect" : "connect", () => (isSent = true));
    });
    request.on("error", (error) => {
      const told = signal.aborted
        ? new Error(`${endpoint} has not answered in time`, { cause: error })
        : error;
      reject(isSent ? told : new NotSent(told));
    });
    request.end(JSON.stringify(body));
    const answer = await promise;
    if (answer.statusCode === 200) return answer;
    const text = await textOf(answer, MOST_ANSWER_BYTES);
    // The gateway's own refusals are plain text.
    const refused = parsedText(refusal, text);
    if (refused === undefined)
      throw new Error(`${endpoint} answered ${answer.statusCode}: ${text.slice(0, MOST_TOLD).trim()}`);
    throw new EtcdRefusal(refused.code, refused.message);
  }
}

/** True where a new token may help. */
function isOfToken(error: unknown): boolean {
  if (!(error instanceof EtcdRefusal)) return false;
  return error.code === UNAUTHENTICATED || error.message.includes(TOKEN_IS_OLD);
}

/** The lines of a stream that are not empty. @throws Error for one that is too long. */
async function* linesOf(answer: IncomingMessage): AsyncGenerator<string> {
  let rest: Buffer[] = [];
  for await (const part of answer as AsyncIterable<Buffer>) {
    let begin = 0;
    for (let end = part.indexOf(0x0a); end >= 0; end = part.indexOf(0x0a, begin)) {
      const line = Buffer.concat([...rest, part.subarray(begin, end)]).toString();
      rest = [];
      begin = end + 1;
      if (line !== "") yield line;
    }
    rest.push(part.subarray(begin));
    const lengths = rest.map(({ length }) => length);
    if (lengths.reduce((sum, length) => sum + length) > MOST_LINE_BYTES)
      throw new Error("a message of etcd is too long");
  }
}

/** The whole body of an answer. @throws AnswerTooLarge for one of more bytes than that, which is read no further */
export async function textOf(answer: IncomingMessage, maxBytes: number): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > maxBytes) throw new AnswerTooLarge(`its answer has more than ${maxBytes} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}
