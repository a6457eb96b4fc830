import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type CommandsServer, startCommandsServer } from "../testing/commands-server.js";

interface Entry {
  readonly timestamp: string;
  readonly level: string;
  readonly message: string;
  readonly fields: Readonly<Record<string, string>>;
}

interface LogsAnswer {
  readonly logs: readonly (Entry & { readonly line?: string })[];
  readonly logEntries?: readonly Entry[];
  readonly message?: string;
}

describe("a sandbox's logs at the control plane (A.5)", { timeout: 240_000 }, () => {
  let server: CommandsServer;
  let id: string;
  before(async () => {
    server = await startCommandsServer({ log: { maxPage: "64KiB" }, maxLineSize: "1KiB" });
    id = server.sandbox.record.id;
  });
  after(() => server[Symbol.asyncDispose]());

  async function run(script: string): Promise<void> {
    const program = { process: { cmd: "/bin/sh", args: ["-c", script] }, stdin: false };
    for await (const _ of server.stream("Start", program));
  }
  async function ask(path: string): Promise<{ readonly status: number; readonly body: LogsAnswer }> {
    const response = await fetch(`${server.server.url}${path}`);
    return { status: response.status, body: (await response.json()) as LogsAnswer };
  }
  const logs = async (query = ""): Promise<readonly Entry[]> =>
    (await ask(`/v2/sandboxes/${id}/logs${query}`)).body.logs;
  const messages = (entries: readonly Entry[]): readonly string[] => entries.map(({ message }) => message);

  it("are the lines of its commands in order, with time, text and source", async () => {
    assert.deepEqual(await logs(), []);
    // A line has the time of its arrival. A busy server would read two lines at once, with one time.
    await run("echo first; sleep 0.3; echo wrong >&2; sleep 0.3; printf 'h\\303\\251 without end'");
    await run("printf 'a\\r\\n\\nb\\n'");
    const all = await logs();
    assert.deepEqual(messages(all), ["first", "wrong", "hé without end", "a", "", "b"]);
    assert.deepEqual(
      all.map(({ level }) => level),
      ["info", "error", "info", "info", "info", "info"],
    );
    assert.deepEqual(
      all.map(({ timestamp }) => timestamp),
      all.map(({ timestamp }) => timestamp).toSorted(),
    );
    const [first, wrong, , other] = all;
    assert.equal(wrong?.fields["stream"], "stderr");
    assert.equal(first?.fields["cmd"], "/bin/sh");
    assert.equal(first?.fields["commandID"], wrong?.fields["commandID"]);
    assert.notEqual(first?.fields["commandID"], other?.fields["commandID"]);
    const { body } = await ask(`/sandboxes/${id}-client7/logs`);
    assert.deepEqual(body.logEntries, all);
    assert.deepEqual(
      body.logs.map(({ line, ...entry }) => ({ ...entry, line: JSON.parse(line ?? "") as unknown })),
      // Fields that E2B's CLI reads: level, logger, timestamp and message of JSON.parse(log.line).
      all.map(({ timestamp, level, message, fields }) => ({
        timestamp,
        line: { timestamp, level, message, logger: "process", ...fields },
      })),
    );
  });

  it("are paged forward and backward from a moment, up to a limit", async () => {
    const all = await logs();
    const wrongAtMs = Date.parse(all[1]?.timestamp ?? "");
    assert.deepEqual(messages(await logs("?limit=2")), ["first", "wrong"]);
    assert.equal(messages(await logs(`?cursor=${wrongAtMs}`))[0], "wrong");
    assert.deepEqual(await logs(`?cursor=${wrongAtMs}&limit=1`), [all[1]]);
    assert.deepEqual(await logs("?direction=backward"), all.toReversed());
    assert.deepEqual(messages(await logs("?direction=backward&limit=2")), ["b", ""]);
    assert.deepEqual(messages(await logs(`?direction=backward&cursor=${wrongAtMs}`)), ["wrong", "first"]);
    assert.deepEqual(await logs("?limit=0"), []);
    assert.deepEqual(await logs("?direction=backward&limit=0"), []);
    const { body } = await ask(`/sandboxes/${id}/logs?start=${wrongAtMs}&limit=1`);
    assert.deepEqual(body.logEntries, [all[1]]);
  });

  it("are filtered by minimum level and by text", async () => {
    assert.deepEqual(messages(await logs("?level=error")), ["wrong"]);
    assert.deepEqual(messages(await logs("?level=warn")), ["wrong"]);
    assert.equal((await logs("?level=info")).length, 6);
    assert.deepEqual(messages(await logs("?search=without")), ["hé without end"]);
    assert.deepEqual(messages(await logs("?search=WITHOUT")), []);
    assert.deepEqual(messages(await logs("?search=r&level=info&direction=backward&limit=1")), ["wrong"]);
  });

  it("are cut when there are many or long lines: answers are bounded", async () => {
    await run("head -c 5000 /dev/zero | tr '\\0' x; echo; seq 1 3000");
    const numbers = await logs("?search=1&direction=backward&limit=3");
    assert.deepEqual(messages(numbers), ["2991", "2981", "2971"]);
    assert.equal((await logs()).length, 1000);
    await run(
      "yes yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy | head -n 2000",
    );
    for (const direction of ["forward", "backward"]) {
      const cut = await logs(`?search=yyyy&direction=${direction}`);
      assert.ok(cut.length > 500 && cut.length < 1000, `${cut.length} ${direction}`);
    }
  });

  it("are refused for an invalid query, and for an unknown sandbox", async () => {
    for (const query of [
      "limit=1001",
      "limit=-1",
      "cursor=now",
      "direction=up",
      "level=loud",
      "search=" + "x".repeat(257),
      "limit=1&limit=2",
    ]) {
      const { status, body } = await ask(`/v2/sandboxes/${id}/logs?${query}`);
      assert.equal(status, 400, query);
      assert.match(body.message ?? "", /^validation error: (limit|cursor|direction|level|search): /);
    }
    assert.equal((await ask(`/sandboxes/${id}/logs?start=x`)).status, 400);
    assert.equal((await ask("/v2/sandboxes/In%20valid/logs")).status, 400);
    for (const path of ["/sandboxes/inever/logs", "/v2/sandboxes/inever/logs"]) {
      assert.equal((await ask(path)).status, 404, path);
    }
  });

  it("outlive it", async () => {
    await server.server.sandboxes.kill(id);
    assert.deepEqual(messages(await logs("?limit=2")), ["first", "wrong"]);
  });
});
