import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { messageOf } from "@coppice/core";

/** Time to answer an accepted connection, in that of the connection. */
const ANSWER_TIMES = 5;
/** Time for which an answer holds. */
const KNOWN_MS = 10 * 60 * 1_000;

/**
 * Asks an archive for one of its files, without a second attempt.
 * @param connectMs time for the connection. @returns why the file cannot be had; undefined when it can
 */
export async function whyUnreachable(url: string, connectMs: number): Promise<string | undefined> {
  const { promise, resolve } = Promise.withResolvers<string | undefined>();
  const request = url.startsWith("https:") ? requestHttps : requestHttp;
  const asked = request(url, { method: "HEAD" });
  const end = (reason: string | undefined): void => {
    resolve(reason);
    asked.destroy();
  };
  const text = (timeoutMs: number): string => `no answer within ${timeoutMs / 1_000} s`;
  let late = setTimeout(end, connectMs, text(connectMs));
  asked.on("socket", (socket) => {
    const isConnected = (): void => {
      clearTimeout(late);
      late = setTimeout(end, connectMs * ANSWER_TIMES, text(connectMs * ANSWER_TIMES));
    };
    if (socket.connecting) socket.once("connect", isConnected);
    else isConnected();
  });
  asked.on("response", ({ statusCode = 500 }) =>
    end(statusCode < 400 ? undefined : `it answers ${statusCode}`),
  );
  asked.on("error", (error) => end(messageOf(error)));
  asked.end();
  try {
    return await promise;
  } finally {
    clearTimeout(late);
  }
}

/** Answers of archives, each asked once in a while for all builds. */
export class ArchiveProbe {
  readonly #connectMs: number;
  readonly #known = new Map<
    string,
    { readonly untilMs: number; readonly reason: Promise<string | undefined> }
  >();

  constructor(connectMs: number) {
    this.#connectMs = connectMs;
  }

  /** As `whyUnreachable`. */
  async whyUnreachable(url: string): Promise<string | undefined> {
    const known = this.#known.get(url);
    if (known !== undefined && known.untilMs > performance.now()) return known.reason;
    const reason = whyUnreachable(url, this.#connectMs);
    this.#known.set(url, { untilMs: performance.now() + KNOWN_MS, reason });
    const found = await reason;
    // What can be reached is asked again: it may end at any time.
    if (found === undefined) this.#known.delete(url);
    return found;
  }
}
