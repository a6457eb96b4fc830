import { Agent } from "node:http";
import { type Answer, exchange, type ExchangeOptions } from "@coppice/test/harness/clients/exchange.js";

/** A sandbox, and the headers that address a port of it. */
export interface BenchedSandbox {
  readonly id: string;
  headers(port: number): Readonly<Record<string, string>>;
}

const ENVD_PORT = 49983;
const CODE_PORT = 49999;
/** A server that is a sandbox. */
export const ITSELF: BenchedSandbox = { id: "", headers: () => ({}) };

/** A client of a server, which keeps its connections. */
export class ServerClient implements AsyncDisposable {
  readonly url: string;
  readonly #apiKey: string;
  readonly #agent = new Agent({ keepAlive: true });

  constructor(url: string, apiKey: string) {
    this.url = url;
    this.#apiKey = apiKey;
  }

  /** @throws Error with the answer unless its status is the expected one. */
  async request(options: ExchangeOptions, expectedStatus: number): Promise<Answer> {
    const answer = await exchange(this.url, { ...options, agent: this.#agent });
    if (answer.status === expectedStatus) return answer;
    throw new Error(`${options.method ?? "GET"} ${options.path}: ${answer.status} ${answer.text}`);
  }

  /** Makes a sandbox. A peer that has no such route, as envd, is taken for the sandbox itself. */
  async createSandbox(template = "base"): Promise<BenchedSandbox> {
    const created = await exchange(this.url, {
      agent: this.#agent,
      method: "POST",
      path: "/v2/sandboxes",
      headers: { "x-api-key": this.#apiKey, "content-type": "application/json" },
      body: JSON.stringify({ templateID: template, timeout: 3600 }),
    });
    if (created.status === 404) return ITSELF;
    if (created.status !== 201) throw new Error(`POST /v2/sandboxes: ${created.status} ${created.text}`);
    const { sandboxID: id, envdAccessToken: token } = created.json() as {
      readonly sandboxID: string;
      readonly envdAccessToken: string;
    };
    return {
      id,
      headers: (port) => ({
        "e2b-sandbox-id": id,
        "e2b-sandbox-port": String(port),
        "x-access-token": token,
      }),
    };
  }

  /** Posts JSON to the code interpreter of a sandbox. @returns its answer. @throws Error unless that is a 200. */
  async askCode(sandbox: BenchedSandbox, path: string, body: object): Promise<string> {
    const headers = { ...sandbox.headers(CODE_PORT), "content-type": "application/json" };
    return (await this.request({ method: "POST", path, headers, body: JSON.stringify(body) }, 200)).text;
  }

  async killSandbox(sandbox: BenchedSandbox): Promise<void> {
    if (sandbox === ITSELF) return;
    await this.request(
      { method: "DELETE", path: `/sandboxes/${sandbox.id}`, headers: { "x-api-key": this.#apiKey } },
      204,
    );
  }

  /** Runs a program to its end. @throws Error unless it ends with 0. */
  async run(sandbox: BenchedSandbox, cmd: string, args: readonly string[] = []): Promise<void> {
    const { text } = await this.request(
      {
        method: "POST",
        path: "/commands",
        headers: { ...sandbox.headers(ENVD_PORT), "content-type": "application/json" },
        body: JSON.stringify({ cmd, args }),
      },
      200,
    );
    if (!text.endsWith('{"type":"end","exit_code":0}\n')) throw new Error(`${cmd} did not end well: ${text}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#agent.destroy();
  }
}
