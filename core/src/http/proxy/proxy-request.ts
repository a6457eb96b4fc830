import type { IncomingMessage, ServerResponse } from "node:http";
import type { IncomingRequest } from "../surfaces/incoming-request.js";
import type { Target } from "../surfaces/surface-request.js";
import { brokenPort } from "./broken-port.js";
import { type ConnectionOption, type PassedRequest, passRequest } from "./pass-request.js";
import type { PortConnections } from "./port-connections.js";
import { requestHead } from "./request-head.js";

const REQUEST_ID = "x-request-id";

interface ProxiedRequest {
  readonly request: Pick<IncomingRequest, "id" | "signal" | "onEnd">;
  readonly target: Target;
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
}

/** Proxies an HTTP request to a port of its sandbox, streaming both ways. @throws HttpError 502 without an answer. */
export async function proxyRequest(proxied: ProxiedRequest, connections: PortConnections): Promise<void> {
  const { message, request, target } = proxied;
  const isShared = !isBoundToConnection(message);
  await passRequest(new ForPort(proxied), {
    take: () => (isShared ? connections.take(target) : undefined),
    async dial(isAgain) {
      const mayBeKept = isShared && !isAgain;
      const connection = await connections.dial(target, request.signal, mayBeKept);
      return { connection, option: mayBeKept ? "keep-alive" : "close" };
    },
  });
}

/** True for a login that applies to a whole connection (NTLM, Negotiate): a shared one would log others in, too. */
function isBoundToConnection({ headers }: IncomingMessage): boolean {
  return headers.authorization !== undefined && /^(ntlm|negotiate)\b/i.test(headers.authorization);
}

/** A request for a program. */
class ForPort implements PassedRequest {
  readonly message: IncomingMessage;
  readonly response: ServerResponse;
  readonly #request: ProxiedRequest["request"];
  readonly #target: Target;

  constructor({ message, request, response, target }: ProxiedRequest) {
    this.message = message;
    this.response = response;
    this.#request = request;
    this.#target = target;
  }

  requestHead(option: ConnectionOption): string {
    return requestHead(this.message, this.#target, `Connection: ${option}\r\n`);
  }

  answerHeaders(headers: readonly string[]): string[] {
    const id = hasName(headers, REQUEST_ID) ? [] : [REQUEST_ID, this.#request.id];
    return [...headers, ...id];
  }

  refusal(cause: unknown): unknown {
    return brokenPort(this.#target, cause);
  }

  passedBack(): void {}

  breakOff(): void {
    this.response.destroy();
  }

  onEnd(act: () => void): void {
    this.#request.onEnd(act);
  }
}

function hasName(headers: readonly string[], name: string): boolean {
  for (let index = 0; index < headers.length; index += 2) {
    if (headers[index]?.length === name.length && headers[index]?.toLowerCase() === name) return true;
  }
  return false;
}
