import { API_KEY } from "@coppice/test/harness/server/api-key.js";
import type { Answer } from "@coppice/test/harness/clients/exchange.js";
import type { BenchedServer } from "./benched-server.js";
import type { BenchedSandbox } from "./server-client.js";

/** Settings of a server that serves commands-v1. */
export const V1_SETTINGS = { "commands-v1": {} };

/** The commands of one sandbox over /v1. */
export class V1Client {
  readonly #server: BenchedServer;
  readonly #path: string;

  constructor(server: BenchedServer, { id }: BenchedSandbox) {
    this.#server = server;
    this.#path = `/v1/sandboxes/${id}/commands`;
  }

  /** Starts a command. @returns its id. */
  async start(argv: readonly string[]): Promise<string> {
    const started = await this.#ask("POST", "", 201, JSON.stringify({ argv }));
    return (started.json() as { readonly command_id: string }).command_id;
  }

  /** Follows the log of a command to its end. @throws Error unless it exited with 0. */
  async follow(id: string): Promise<void> {
    const { text } = await this.#ask("GET", `/${id}/logs?follow=true`, 200);
    if (!text.includes('"phase":"exited","exit_code":0')) throw new Error(`it did not end well: ${text}`);
  }

  /** Reads the log of a command page by page. @returns its bytes. */
  async readPages(id: string, limitBytes: number): Promise<number> {
    for (let cursor = 0; ;) {
      const page = await this.#ask("GET", `/${id}/logs?cursor=${cursor}&limit=${limitBytes}`, 200);
      // Parsing would measure the client: the cursor stands behind the bytes.
      const next = Number(/"next_cursor":(\d+)/.exec(page.body.subarray(-200).toString())?.[1]);
      if (next === cursor) return cursor;
      cursor = next;
    }
  }

  #ask(method: string, path: string, status: number, body?: string): Promise<Answer> {
    return this.#server.request(
      {
        method,
        path: this.#path + path,
        headers: { "x-api-key": API_KEY },
        ...(body !== undefined && { body }),
      },
      status,
    );
  }
}
