import { z } from "zod";
import { messageOf } from "../kernel/errors.js";
import type { ServerClient, ServerRequest } from "../plugin/plugin.js";

export class ApiFailure extends Error {
  override readonly name = "ApiFailure";
  /** Undefined when there was no answer. */
  readonly status: number | undefined;

  constructor(message: string, options: { readonly status?: number; readonly cause?: unknown } = {}) {
    super(message, { cause: options.cause });
    this.status = options.status;
  }
}

const DEFAULT_URL = "http://127.0.0.1:3000";

const refusal = z.object({ message: z.string() });

/** Client of a server's control plane, for verbs of plugins. */
export class HttpServerClient implements ServerClient {
  readonly #apiUrl: string;
  readonly #key: string | undefined;

  /**
   * @param said options of the command line; they win over environment variables.
   * @param otherwise URL of the server where neither names one.
   */
  constructor(
    said: { readonly url?: string | undefined },
    environment: Readonly<NodeJS.ProcessEnv>,
    otherwise = DEFAULT_URL,
  ) {
    const { COPPICE_URL, E2B_API_URL, COPPICE_TOKEN, E2B_API_KEY } = environment;
    this.#apiUrl = said.url ?? COPPICE_URL ?? E2B_API_URL ?? otherwise;
    this.#key = COPPICE_TOKEN ?? E2B_API_KEY;
  }

  /** Sends a request to the control plane. @throws ApiFailure unless the answer is a success. */
  request(request: ServerRequest): Promise<Response> {
    const authorization = this.#key === undefined ? {} : { authorization: `Bearer ${this.#key}` };
    return send(this.#apiUrl, { ...request, headers: { ...authorization, ...request.headers } });
  }
}

async function send(base: string, { method, path, body, headers, signal }: ServerRequest): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(new URL(path, base), {
      method: method ?? "GET",
      headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
      body: body instanceof Uint8Array || body === undefined ? (body ?? null) : JSON.stringify(body),
      signal: signal ?? null,
    });
  } catch (error) {
    signal?.throwIfAborted();
    const { cause } = error as { readonly cause?: unknown };
    throw new ApiFailure(`cannot reach ${base}: ${messageOf(cause ?? error)}`, { cause: error });
  }
  if (response.ok) return response;
  const text = await response.text();
  const hint = response.status === 401 ? "; name a key of this server by E2B_API_KEY or COPPICE_TOKEN" : "";
  throw new ApiFailure(`${response.status}: ${errorMessageIn(text)}${hint}`, { status: response.status });
}

/** The message of an error answer; the whole text of one in another format. */
function errorMessageIn(text: string): string {
  try {
    return refusal.parse(JSON.parse(text)).message;
  } catch {
    return text.trim().slice(0, 500);
  }
}
