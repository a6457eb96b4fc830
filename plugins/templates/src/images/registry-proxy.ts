import { Agent as HttpAgent } from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import { buffer } from "node:stream/consumers";
import type { TemplatesConfig } from "../templates-config.js";

/** What a request goes by. */
export interface Agents extends Disposable {
  readonly of: (url: URL, isOnce: boolean) => HttpAgent;
}

const MOST_CONNECTIONS = 8;
const PROXY = /^https?:\/\/[^/\s]+\/?$/;

/** The proxy between this server and registries: that of the settings, or else of the environment. */
export class RegistryProxy {
  readonly #settings: Pick<TemplatesConfig["registries"], "proxy" | "private">;
  readonly #environment: NodeJS.ProcessEnv;
  readonly #exceptions: readonly string[];

  constructor(
    settings: Pick<TemplatesConfig["registries"], "proxy" | "private">,
    environment: NodeJS.ProcessEnv = process.env,
  ) {
    this.#settings = settings;
    this.#environment = environment;
    const { no_proxy: exceptions = environment["NO_PROXY"] ?? "" } = environment;
    this.#exceptions = exceptions.toLowerCase().split(/[\s,]+/);
  }

  /** True for a URL that the proxy is asked for. @throws Error for an environment without a usable one */
  isFor(url: URL): boolean {
    return this.#addressFor(url) !== undefined;
  }

  /** Agents of one client. */
  open(): Agents {
    const opened = new Map<string, HttpAgent>();
    return {
      of: (url, isOnce) => {
        const key = `${url.protocol} ${isOnce} ${this.isFor(url)}`;
        const agent = opened.get(key) ?? this.#agentFor(url, isOnce);
        opened.set(key, agent);
        return agent;
      },
      [Symbol.dispose]: () => opened.forEach((agent) => agent.destroy()),
    };
  }

  /** As the function of that name, without redirects. */
  async fetch(
    url: string,
    init: { method: string; headers: Record<string, string>; body: string; signal: AbortSignal },
  ) {
    const target = new URL(url);
    if (!this.isFor(target)) return fetch(url, { ...init, redirect: "error" });
    const { body, ...options } = init;
    const { promise, resolve, reject } = Promise.withResolvers<Response>();
    const agent = this.#agentFor(target, true);
    requestHttps(target, { ...options, agent }, (answer) => {
      buffer(answer).then(
        (content) => resolve(new Response(new Uint8Array(content), { status: answer.statusCode ?? 502 })),
        reject,
      );
    })
      .on("error", reject)
      .end(body);
    return promise;
  }

  #agentFor(url: URL, isOnce: boolean): HttpAgent {
    const address = this.#addressFor(url);
    const options = {
      keepAlive: !isOnce,
      maxSockets: MOST_CONNECTIONS,
      ...(address !== undefined && { proxyEnv: { HTTP_PROXY: address, HTTPS_PROXY: address } }),
    };
    return url.protocol === "https:" ? new HttpsAgent(options) : new HttpAgent(options);
  }

  #addressFor(url: URL): string | undefined {
    const { proxy, private: direct } = this.#settings;
    if (proxy === "none" || direct.includes(url.host) || this.#excepts(url)) return undefined;
    if (proxy !== undefined) return proxy;
    const name = `${url.protocol.slice(0, -1)}_proxy`;
    const found = this.#environment[name] || this.#environment[name.toUpperCase()];
    if (!found) return undefined;
    const address = found.includes("://") ? found : `http://${found}`;
    // Its text may have an account.
    if (!PROXY.test(address) || !URL.canParse(address))
      throw new Error(
        `the variable ${name.toUpperCase()} of this server's environment is no address of an HTTP proxy`,
      );
    return address;
  }

  /** As curl reads NO_PROXY: names with those below them, addresses, with a port or without one, or `*`. */
  #excepts({ hostname, port, protocol }: URL): boolean {
    const host = hostname.replace(/^\[(.*)\]$/, "$1");
    const withPort = `${hostname}:${port || (protocol === "https:" ? 443 : 80)}`;
    return this.#exceptions.some((entry) => {
      const name = entry.replace(/^\*?\./, "");
      if (name === "") return false;
      return (
        entry === "*" || [host, hostname, withPort].some((own) => own === name || own.endsWith(`.${name}`))
      );
    });
  }
}
