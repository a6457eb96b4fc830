import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { Duplex } from "node:stream";
import { it } from "node:test";
import type { PortHandler } from "../../testing/memory-backend.js";
import type { Program } from "../../testing/memory-process.js";
import type { ReadinessProbe } from "../model/readiness-probe.js";
import {
  assertNothingLeft,
  base,
  fails,
  type Fixture,
  FragileLedger,
  MINUTE_MS,
  startDomain,
} from "../testing/start-domain.js";
import { systemClock } from "../../kernel/clock.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import { untilReady } from "./until-ready.js";

const SECOND_MS = 1000;

/** Lets everything run that waits for nothing but its turn; time stands still. */
async function settle({ clock }: Pick<Fixture, "clock">): Promise<void> {
  for (let turn = 0; turn < 50; turn += 1) {
    await clock.advance(0);
    await new Promise(setImmediate);
  }
}

/** Speaks HTTP on a port, with the status that `statusOf` answers for a path. */
function serves(statusOf: (path: string) => number | undefined): PortHandler {
  const server = createServer((message, response) => {
    const status = statusOf(message.url ?? "");
    // This port never answers.
    if (status === undefined) return;
    response.writeHead(status).end("x".repeat(10));
  });
  return (connection: Duplex) => void server.emit("connection", connection);
}

it("a creation is answered when its probe succeeds, and its life begins then", async (context) => {
  let isUp = false;
  const asked: string[] = [];
  const ran: unknown[] = [];
  const check: Program = async ({ args, env, user, cwd }) => {
    ran.push([args, env["A"], env["E2B_SANDBOX"], user.name, cwd]);
    return isUp ? 0 : 3;
  };
  const http = serves((path) => {
    asked.push(path);
    return isUp ? 302 : 503;
  });
  const domain = await startDomain(context, {
    script: {
      programs: { sh: check, check },
      ports: { 80: http },
    },
  });
  const { sandboxes, backend, clock, ledger } = domain;
  const probes: readonly ReadinessProbe[] = [
    { type: "tcp", port: 81, intervalMs: SECOND_MS },
    { type: "http", port: 80, path: "/up?now", intervalMs: SECOND_MS },
    { type: "shell", command: "test -e up", intervalMs: SECOND_MS },
    { type: "shell", command: ["/usr/bin/check", "it"], intervalMs: SECOND_MS },
  ];
  for (const readinessProbe of probes) {
    isUp = false;
    asked.length = 0;
    ran.length = 0;
    let hasAnswered = false;
    const making = sandboxes.create({ ...base, environment: { A: "1" }, readinessProbe });
    void making.then(() => (hasAnswered = true));
    for (let second = 0; second < 3; second += 1) {
      await settle(domain);
      assert.equal(hasAnswered, false, JSON.stringify(readinessProbe));
      const [entry] = await ledger.entries();
      assert.equal(entry?.record.state, "creating", "a server that ends now removes it");
      await clock.advance(SECOND_MS);
    }
    isUp = true;
    for (const sandbox of backend.sandboxes.values()) sandbox.listen(81, (connection) => connection.end());
    await settle(domain);
    await clock.advance(SECOND_MS);
    const { record } = await making;
    assert.equal(record.startedAtMs, clock.now());
    assert.equal(record.endsAtMs, clock.now() + 5 * MINUTE_MS);
    assert.ok(asked.every((path) => path === "/up?now"));
    const words = readinessProbe.type === "shell" && typeof readinessProbe.command === "string";
    for (const one of ran) {
      assert.deepEqual(one, [words ? ["-lc", "test -e up"] : ["it"], "1", "true", "user", "/home/user"]);
    }
    assert.equal(asked.length > 3 || ran.length > 3 || readinessProbe.type === "tcp", true);
    await sandboxes.kill(record.id);
  }
  assert.ok((await domain.metric("ready_seconds")) > 0);
  assert.equal(await domain.metric("not_ready_total"), 0);
  await assertNothingLeft(domain);
});

it("a sandbox that is not ready in time is refused with its last attempt's outcome, and leaves nothing", async (context) => {
  const never: Program = () => new Promise(() => {});
  let calls = 0;
  const domain = await startDomain(context, {
    script: {
      programs: {
        never,
        wrong: () => Promise.resolve(43),
        once: (run) => (calls++ === 0 ? Promise.resolve(43) : never(run)),
      },
      ports: { 80: serves(() => 400), 81: serves(() => undefined) },
    },
  });
  const { sandboxes, clock, ledger } = domain;
  const cases: readonly [ReadinessProbe, RegExp][] = [
    [{ type: "tcp", port: 9 }, /nothing listens on port 9$/],
    [{ type: "http", port: 80, path: "/" }, /port 80 answers 400$/],
    [{ type: "http", port: 81, path: "/" }, /an attempt took longer than \d+ ms$/],
    [{ type: "shell", command: ["wrong"] }, /its command ended with exit code 43$/],
    // The second attempt is cut short by the end of the time.
    [{ type: "shell", command: ["once"], intervalMs: 8_000 }, /its command ended with exit code 43$/],
    [{ type: "shell", command: ["never"] }, /an attempt took longer than \d+ ms$/],
    [{ type: "shell", command: ["missing"] }, /its command ended with exit code 127$/],
  ];
  for (const [readinessProbe, why] of cases) {
    const making = sandboxes.create({ ...base, readinessProbe: { ...readinessProbe, timeoutMs: 12_000 } });
    const refused = assert.rejects(making, (error: Error) => {
      assert.ok(fails("unavailable", why)(error));
      assert.match(error.message, /^the sandbox was not ready within 12000 ms: /);
      return true;
    });
    for (let tenth = 0; tenth < 130; tenth += 1) {
      await settle(domain);
      await clock.advance(100);
    }
    await refused;
  }
  assert.equal(await domain.metric("not_ready_total"), cases.length);
  assert.equal(await domain.metric("create_failures_total"), cases.length);
  assert.equal(await domain.metric("created_total"), 0);
  await assertNothingLeft(domain);
  assert.deepEqual(await ledger.outbox(1), []);
});

it("a leaving client, a kill, and a sandbox that ends by itself end the waiting at once", async (context) => {
  const domain = await startDomain(context);
  const { sandboxes, backend, clock } = domain;
  const readinessProbe: ReadinessProbe = { type: "tcp", port: 9, timeoutMs: 5 * MINUTE_MS };
  const wait = async (signal?: AbortSignal) => {
    const making = sandboxes.create({ ...base, readinessProbe }, signal);
    making.catch(() => {});
    await settle(domain);
    const [id = ""] = [...backend.sandboxes.keys()];
    assert.equal(sandboxes.find(id)?.record.state, "creating");
    return { making, id };
  };
  const leaving = new AbortController();
  const left = await wait(leaving.signal);
  leaving.abort();
  await assert.rejects(left.making, fails("canceled", /canceled/));
  const killed = await wait();
  await sandboxes.kill(killed.id);
  await assert.rejects(killed.making, fails("aborted", /was ended while it was being made/));
  const lost = await wait();
  backend.sandboxes.get(lost.id)?.lose("out of memory");
  await assert.rejects(lost.making, fails("unavailable", /while it was being made: out of memory$/));
  await settle(domain);
  assert.equal(await sandboxes.remembers(lost.id), false);
  assert.equal(await domain.metric("not_ready_total"), 0);
  assert.equal(clock.pending, 0);
  await assertNothingLeft(domain);
});

it("a template's probe counts where the creator names none, for forks too", async (context) => {
  const ledger = new FragileLedger();
  const settings = {
    templates: {
      base: { readinessProbe: { type: "tcp", port: 9, timeout: "2s", interval: "100ms" } as const },
    },
  };
  const domain = await startDomain(context, {
    script: { snapshots: {}, programs: { fine: () => Promise.resolve(0) } },
    settings,
    ledger,
  });
  const { sandboxes, snapshots, clock } = domain;
  const refused = async (making: Promise<unknown>): Promise<unknown> => {
    const reason = making.then(
      () => undefined,
      (error: unknown) => error,
    );
    for (let tenth = 0; tenth < 25; tenth += 1) {
      await settle(domain);
      await clock.advance(100);
    }
    return reason;
  };
  assert.match(String(await refused(sandboxes.create(base))), /not ready within 2000 ms/);
  const fine: ReadinessProbe = { type: "shell", command: ["fine"] };
  const source = await sandboxes.create({ ...base, readinessProbe: fine });
  const own = snapshots.of(DEFAULT_TENANT);
  const wanted = { count: 1, timeoutMs: MINUTE_MS };
  const forking = own.fork(source.record.id, wanted);
  await refused(forking);
  const [unready] = await forking;
  assert.ok(unready && "error" in unready);
  assert.match(String(unready.error), /not ready within 2000 ms/);
  const [fork] = await own.fork(source.record.id, { ...wanted, readinessProbe: fine });
  assert.ok(fork && "sandbox" in fork);
  await assert.rejects(
    own.fork(source.record.id, { ...wanted, readinessProbe: { ...fine, intervalMs: 1 } }),
    fails("invalid_argument", /at least 50 ms/),
  );
});

it("a probe that asks for more than the server allows is refused before anything is made", async (context) => {
  const domain = await startDomain(context, {
    script: { onProvision: () => assert.fail("the backend was asked") },
  });
  const refusals: readonly [Partial<ReadinessProbe>, RegExp][] = [
    [{ timeoutMs: 5 * MINUTE_MS + 1 }, /at most 300000 ms$/],
    [{ timeoutMs: 0 }, /more than 0/],
    [{ timeoutMs: NaN }, /more than 0/],
    [{ intervalMs: 49 }, /at least 50 ms/],
    [{ intervalMs: Infinity }, /at most 300000 ms$/],
  ];
  for (const [times, why] of refusals) {
    const readinessProbe: ReadinessProbe = { type: "tcp", port: 80, ...(times as object) };
    const making = domain.sandboxes.create({ ...base, readinessProbe });
    await assert.rejects(making, fails("invalid_argument", why));
  }
  await assertNothingLeft(domain);
});

it("a command whose output breaks off is judged by how it ended", async () => {
  const output: AsyncIterable<never> = {
    [Symbol.asyncIterator]: () => ({ next: () => Promise.reject(new Error("the agent is gone")) }),
  };
  const process = { output, exit: Promise.resolve({ code: 0 }), kill: () => Promise.resolve() };
  const runtime = {
    user: () => Promise.resolve({ name: "user", home: "/", shell: "/bin/sh" }),
    spawn: () => Promise.resolve(process),
  };
  const settings = {
    timeout: SECOND_MS,
    maximumTimeout: SECOND_MS,
    interval: 1,
    leastInterval: 1,
    attemptTimeout: SECOND_MS,
  };
  const sandbox = { record: { id: "probed", environment: {} }, runtime } as unknown as Parameters<
    typeof untilReady
  >[0];
  const { signal } = new AbortController();
  // A rejection that is not handled would fail this test.
  await untilReady(sandbox, { type: "shell", command: "true" }, { settings, clock: systemClock, signal });
  await new Promise(setImmediate);
});
