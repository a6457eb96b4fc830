import assert from "node:assert/strict";
import { Agent } from "node:http";
import { after, before, describe, it } from "node:test";
import type { TestServer } from "@coppice/core/testing";
import { packFrame, unpackFrames } from "../../harness/clients/connect-frames.js";
import { exchange } from "../../harness/clients/exchange.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { ProcessClient } from "../../harness/clients/process-client.js";
import { type BackendName, startFullServer } from "../../harness/server/start-full-server.js";

interface Event {
  readonly data?: { readonly stdout?: string; readonly stderr?: string };
  readonly end?: { readonly exitCode?: number; readonly status: string };
}

const STREAMS = 200;
const TERMINALS = 50;
const LINES = 6;

describe("many commands, on local-process", { timeout: 240_000 }, () => manyCommands("local-process"));
describe("many commands, on linux-namespaces", { timeout: 240_000, skip: missingForNamespaces() }, () =>
  manyCommands("linux-namespaces"),
);

function manyCommands(backend: BackendName): void {
  let server: TestServer;
  let headers: Readonly<Record<string, string>>;
  const agent = new Agent({ keepAlive: true, maxSockets: 250 });
  before(async () => {
    server = await startFullServer({ backend });
    const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 120_000, secure: false });
    headers = { "e2b-sandbox-id": record.id, "e2b-sandbox-port": "49983" };
  });
  after(async () => {
    agent.destroy();
    await server.stop();
  });

  /**
   * Runs a program to its end.
   * @returns all its output
   */
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

  /**
   * Types lines into a new terminal.
   * @returns all its output
   */
  async function converse(name: string): Promise<{ readonly shown: string; readonly exitCode?: number }> {
    const client = new ProcessClient(server.url, headers);
    const script = 'stty -echo; echo ready; while read -r line; do echo "$1 $line"; done; exit 3';
    let shown = "";
    let exitCode: number | undefined;
    let pid = 0;
    let typing: Promise<void> | undefined;
    for await (const event of client.start(
      { cmd: "/bin/sh", args: ["-c", script, "sh", name], pty: true },
      "json",
    )) {
      pid ||= event.pid ?? 0;
      exitCode ??= event.end;
      shown += event.pty?.toString() ?? "";
      if (!shown.includes("ready")) continue;
      const lines = Array.from({ length: LINES }, (_, n) => Buffer.from(`${n}\n`));
      const pieces = [...lines, Buffer.from("\u0004")];
      typing ??= client.input({ pid, channel: "pty", codec: "json", pieces });
    }
    await typing;
    return { shown, ...(exitCode !== undefined && { exitCode }) };
  }

  it(`${STREAMS} that stream and ${TERMINALS} terminals at the same time: none lost, none stuck, none hears another`, async () => {
    const script =
      'n=0; while [ $n -lt 6 ]; do echo "$1 $n"; echo "$1! $n" >&2; n=$((n+1)); sleep 0.1; done; exit $2';
    const names = Array.from({ length: STREAMS }, (_, at) => `command-${at}`);
    const streams = Promise.all(
      names.map((name, at) => run("/bin/sh", ["-c", script, "sh", name, String(at % 7)])),
    );
    const terminals = Promise.all(Array.from({ length: TERMINALS }, (_, at) => converse(`terminal-${at}`)));
    const lines = (head: string, newline = "\n"): string =>
      Array.from({ length: LINES }, (_, n) => `${head} ${n}${newline}`).join("");
    for (const [at, said] of (await streams).entries()) {
      const name = names[at] ?? "";
      assert.deepEqual(said, { stdout: lines(name), stderr: lines(`${name}!`), exitCode: at % 7 }, name);
    }
    for (const [at, { shown, exitCode }] of (await terminals).entries()) {
      assert.equal(shown, `ready\r\n${lines(`terminal-${at}`, "\r\n")}`);
      assert.equal(exitCode, 3);
    }
  });

  it("1 000 in a row, and 1 000 more 16 at a time: every byte and every exit code", async () => {
    const check = async (at: number): Promise<void> => {
      const said = await run("/bin/sh", ["-c", `echo ${at}; exit ${at % 251}`]);
      assert.deepEqual(said, { stdout: `${at}\n`, stderr: "", exitCode: at % 251 });
    };
    for (let at = 0; at < 1000; at += 1) await check(at);
    let next = 1000;
    const work = async (): Promise<void> => {
      while (next < 2000) await check((next += 1));
    };
    await Promise.all(Array.from({ length: 16 }, work));
  });
}
