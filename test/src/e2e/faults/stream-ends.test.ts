import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { Sandbox, TimeoutError } from "e2b";
import { exchange } from "../../harness/clients/exchange.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";
import { type Codec, ProcessClient, type ProcessEvent } from "../../harness/clients/process-client.js";

const LAST = 4_000_000;
const STALLED_POLLS = 20;

onEachBackend("streams of a command", ({ server, sandbox }) => {
  const headersOf = (sandboxId: string) => ({
    "e2b-sandbox-id": sandboxId,
    "e2b-sandbox-port": "49983",
    "x-access-token": server().sandboxes.get(sandboxId).record.accessToken ?? "",
  });

  it("that one of several subscribers does not read make the program wait, and lose nothing when it does", async () => {
    const client = new ProcessClient(server().url, headersOf(sandbox().sandboxId));
    const program = { cmd: "/bin/sh", args: ["-c", `read go; exec seq 1 ${LAST}`], stdin: true };
    const first = client.start(program, "json");
    const { value: started } = (await first.next()) as { readonly value: ProcessEvent };
    const pid = started.pid ?? 0;
    const followers = [first];
    for (const codec of ["proto", "json"] satisfies Codec[]) {
      const follower = client.connect(pid, codec);
      await follower.next();
      followers.push(follower);
    }
    const slow = followers.pop() as AsyncGenerator<ProcessEvent>;
    const taken = followers.map(() => 0);
    const drain = async (events: AsyncGenerator<ProcessEvent>, onBytes: (bytes: number) => void) => {
      const hash = createHash("sha256");
      let exitCode: number | undefined;
      for await (const { stdout, end } of events) {
        exitCode ??= end;
        if (stdout !== undefined) hash.update(stdout);
        onBytes(stdout?.length ?? 0);
      }
      return { exitCode, digest: hash.digest("hex") };
    };
    const fast = followers.map((events, at) =>
      drain(events, (bytes) => (taken[at] = (taken[at] ?? 0) + bytes)),
    );
    await client.input({ pid, channel: "stdin", codec: "json", pieces: [Buffer.from("\n")] });

    let seen = "";
    let polls = 0;
    await eventually(
      "the quick ones to wait for the slow one",
      () => {
        polls = taken.join() === seen && !taken.includes(0) ? polls + 1 : 0;
        seen = taken.join();
        return polls > STALLED_POLLS;
      },
      30_000,
    );
    const text = createHash("sha256");
    let wholeBytes = 0;
    for (let next = 1; next <= LAST; next += 100_000) {
      const lines = Array.from({ length: 100_000 }, (_, at) => `${next + at}\n`).join("");
      wholeBytes += lines.length;
      text.update(lines);
    }
    for (const bytes of taken) assert.ok(bytes < wholeBytes * 0.75, `${bytes} of ${wholeBytes} came through`);
    const running = (await sandbox().commands.list()).map((each) => each.pid);
    assert.ok(running.includes(pid), "the program waits");

    const expected = { exitCode: 0, digest: text.digest("hex") };
    assert.deepEqual(await drain(slow, () => undefined), expected);
    assert.deepEqual(await Promise.all(fast), [expected, expected]);
  });

  for (const [how, end] of [
    ["is killed", (id: string) => Sandbox.kill(id)],
    ["is out of time", (id: string) => Sandbox.setTimeout(id, 0)],
  ] as const) {
    it(`break off when the sandbox ${how}, after its health has become 502`, async () => {
      const mortal = await Sandbox.create();
      const headers = headersOf(mortal.sandboxId);
      const health = async (): Promise<number> =>
        (await exchange(server().url, { path: "/health", headers })).status;
      const handle = await mortal.commands.run("exec sleep 300", { background: true });
      const ended = assert.rejects(handle.wait(), (error) => {
        assert.ok(error instanceof TimeoutError, String(error));
        assert.match(error.message, /The sandbox was killed or reached its end of life/);
        return true;
      });
      const events = new ProcessClient(server().url, headers).connect(handle.pid, "proto");
      await events.next();
      const order: string[] = [];
      const broken = events.next().then(
        () => assert.fail("the stream has an end"),
        async () => {
          order.push("broken");
          return health();
        },
      );
      assert.equal(await health(), 204);
      server()
        .sandboxes.get(mortal.sandboxId)
        .ended.addEventListener("abort", () => {
          order.push(server().sandboxes.find(mortal.sandboxId) === undefined ? "gone" : "still there");
        });
      await end(mortal.sandboxId);
      assert.equal(await broken, 502);
      await ended;
      assert.deepEqual(order, ["gone", "broken"]);
    });
  }
});
