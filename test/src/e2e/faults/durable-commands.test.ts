import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { SeededRandom } from "@coppice/core/testing";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { makeInstallation, namespacePlugins, ServerProcess } from "../../harness/server/server-process.js";

const ROUNDS = Number(process.env["COPPICE_ROUNDS"] ?? 8);
/** Writes bursts to its stdout and to a file. */
const SCRIPT =
  "for n in $(seq 60); do seq $((n * 1000)) $((n * 1000 + 999)); sleep 0.01; done | tee /tmp/written";
const LONGEST_MS = 900;

interface Answer {
  readonly id: string;
  readonly command_id: string;
  readonly phase: string;
  readonly exit_code: number | null;
  readonly bytes: string;
  readonly next_cursor: number;
  readonly truncated_before?: number;
}

describe("the log of a command over kill -9 of the server", { skip: missingForNamespaces() }, () => {
  it("is byte for byte what the command wrote, for clients that followed and for one that comes later", async () => {
    const random = new SeededRandom(Number(process.env["COPPICE_FUZZ_SEED"] ?? Date.now() % 1_000_000));
    const installation = await makeInstallation({
      config: { sandboxes: { defaultBackend: "linux-namespaces", onShutdown: "keep" } },
      plugins: (directory) => ({ ...namespacePlugins(directory), "commands-v1": {} }),
    });
    let server = await ServerProcess.start(installation.configFile);
    const headers = { "x-api-key": API_KEY };
    const ask = async (path: string, body?: object) => {
      const response = await fetch(`${server.url}/v1/sandboxes${path}`, {
        headers,
        ...(body && { method: "POST", body: JSON.stringify(body) }),
      });
      assert.ok(response.ok, `${path}: ${response.status}`);
      return (await response.json()) as Answer;
    };
    /** Reads from a cursor to the end of the command, page by page. */
    const readFrom = async (path: string, cursor: number): Promise<Buffer> => {
      const pages: Buffer[] = [];
      for (let at = cursor; ;) {
        const page = await ask(`${path}/logs?encoding=base64&cursor=${at}`);
        assert.equal(page.truncated_before, undefined);
        pages.push(Buffer.from(page.bytes, "base64"));
        if (page.next_cursor === at && page.phase !== "running") return Buffer.concat(pages);
        if (page.next_cursor === at) await delay(20);
        at = page.next_cursor;
      }
    };
    /** Follows until the connection breaks, or to the end. */
    const follow = async (path: string): Promise<string> => {
      let text = "";
      try {
        const response = await fetch(`${server.url}/v1/sandboxes${path}/logs?follow=true`, { headers });
        for await (const chunk of response.body ?? []) text += Buffer.from(chunk).toString();
      } catch {
        // The server was killed.
      }
      const events = text.split("\n\n").slice(0, -1);
      const data = events
        .map((event) => /^event: log\n.*\ndata: (.*)$/.exec(event)?.[1])
        .filter((each) => each !== undefined);
      return data.map((json) => (JSON.parse(json) as Answer).bytes).join("");
    };
    try {
      const { id } = await ask("", { image: "base", auto_stop_minutes: 0 });
      for (let round = 0; round < ROUNDS; round += 1) {
        const told = `round ${round}, COPPICE_FUZZ_SEED=${random.seed}`;
        const { command_id: command } = await ask(`/${id}/commands`, { argv: ["/bin/sh", "-c", SCRIPT] });
        const path = `/${id}/commands/${command}`;
        const followers = [follow(path), follow(path)];
        await delay(random.below(LONGEST_MS));
        server.signal("SIGKILL");
        await server.ended;
        const followed = await Promise.all(followers);
        server = await ServerProcess.start(installation.configFile);
        const whole = await readFrom(path, 0);
        const status = await ask(path);
        assert.deepEqual([status.phase, status.exit_code], ["exited", 0], told);
        const { command_id: reading } = await ask(`/${id}/commands`, { argv: ["cat", "/tmp/written"] });
        const written = await readFrom(`/${id}/commands/${reading}`, 0);
        assert.equal(written.length, 60 * 1000 * 6 - 9 * 1000, told);
        assert.ok(whole.equals(written), `${told}: ${whole.length} bytes of ${written.length}`);
        for (const text of followed) {
          const rest = await readFrom(path, Buffer.byteLength(text));
          assert.ok(Buffer.concat([Buffer.from(text), rest]).equals(written), `${told}: a follower`);
        }
      }
    } finally {
      const { id } =
        ((await (await fetch(`${server.url}/v1/sandboxes`, { headers })).json()) as Answer[])[0] ?? {};
      if (id !== undefined) await fetch(`${server.url}/v1/sandboxes/${id}`, { method: "DELETE", headers });
      await server.stop();
      await installation.remove();
    }
  });
});
