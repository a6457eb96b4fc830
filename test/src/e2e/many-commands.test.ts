import assert from "node:assert/strict";
import { Agent } from "node:http";
import { after, before, describe, it } from "node:test";
import type { TestServer } from "@coppice/core/testing";
import { packFrame, unpackFrames } from "../harness/connect-frames.js";
import { exchange } from "../harness/exchange.js";
import { startFullServer } from "../harness/start-full-server.js";

interface Event {
  readonly data?: { readonly stdout?: string; readonly stderr?: string };
  readonly end?: { readonly exitCode?: number; readonly status: string };
}

describe("many commands", { timeout: 120_000 }, () => {
  let server: TestServer;
  let headers: Readonly<Record<string, string>>;
  const agent = new Agent({ keepAlive: true, maxSockets: 250 });
  before(async () => {
    server = await startFullServer();
    const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 120_000, secure: false });
    headers = { "e2b-sandbox-id": record.id, "e2b-sandbox-port": "49983" };
  });
  after(async () => {
    agent.destroy();
    await server.stop();
  });

  /** Runs a program to its end: all that it said. */
  async function run(cmd: string, args: readonly string[]) {
    const answer = await exchange(server.url, {
      method: "POST",
      path: "/process.Process/Start",
      headers: { ...headers, "content-type": "application/connect+json" },
      body: packFrame(JSON.stringify({ process: { cmd, args }, stdin: false })),
      agent,
    });
    assert.equal(answer.status, 200, answer.text);
    const received = unpackFrames(answer.body);
    assert.deepEqual(received.at(-1), { flags: 2, message: {} });
    const events = received.slice(0, -1).map(({ message }) => (message as { event: Event }).event);
    const output = (name: "stdout" | "stderr"): string =>
      Buffer.concat(events.map(({ data }) => Buffer.from(data?.[name] ?? "", "base64"))).toString();
    const { exitCode = 0 } = events.at(-1)?.end ?? {};
    return { stdout: output("stdout"), stderr: output("stderr"), exitCode };
  }

  it("200 that stream at the same time: none lost, none stuck, none hears another", async () => {
    const script =
      'n=0; while [ $n -lt 6 ]; do echo "$1 $n"; echo "$1! $n" >&2; n=$((n+1)); sleep 0.1; done; exit $2';
    const names = Array.from({ length: 200 }, (_, at) => `command-${at}`);
    const all = await Promise.all(
      names.map((name, at) => run("/bin/sh", ["-c", script, "sh", name, String(at % 7)])),
    );
    const lines = (head: string): string => Array.from({ length: 6 }, (_, n) => `${head} ${n}\n`).join("");
    for (const [at, said] of all.entries()) {
      const name = names[at] ?? "";
      assert.deepEqual(said, { stdout: lines(name), stderr: lines(`${name}!`), exitCode: at % 7 }, name);
    }
  });

  it("2 000 in a row, and 1 000 more 16 at a time: every byte and every exit code", async () => {
    const check = async (at: number): Promise<void> => {
      const said = await run("/bin/sh", ["-c", `echo ${at}; exit ${at % 251}`]);
      assert.deepEqual(said, { stdout: `${at}\n`, stderr: "", exitCode: at % 251 });
    };
    for (let at = 0; at < 2000; at += 1) await check(at);
    let next = 2000;
    const work = async (): Promise<void> => {
      while (next < 3000) await check((next += 1));
    };
    await Promise.all(Array.from({ length: 16 }, work));
  });
});
