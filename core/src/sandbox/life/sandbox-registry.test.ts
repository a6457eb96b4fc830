import assert from "node:assert/strict";
import { it } from "node:test";
import { SandboxError } from "../../kernel/errors.js";
import { MemoryBackend } from "../../testing/memory-backend.js";
import type { Program } from "../../testing/memory-process.js";
import { ALL_TRAFFIC } from "../contract/egress-rules.js";
import type { CreateSandbox } from "./sandboxes.js";
import {
  asStored,
  assertNothingLeft,
  base,
  fails,
  FragileLedger,
  MINUTE_MS,
  plainRecord,
  startDomain,
} from "../testing/start-domain.js";

it("a sandbox is made, found, used and killed, and then nothing of it is left", async (context) => {
  const cat: Program = async ({ stdin, stdout }) => {
    for await (const data of stdin) await stdout(data);
  };
  const settings = { maximumLimits: { memoryMiB: 64 } };
  const domain = await startDomain(context, { script: { programs: { cat } }, settings });
  const { sandboxes, ledger, clock } = domain;
  const sandbox = await sandboxes.create({
    ...base,
    metadata: { user: "abc" },
    environment: { A: "1" },
    limits: { memoryMiB: 64, cpuCount: undefined },
  });
  const { record } = sandbox;
  assert.match(record.id, /^i[a-z0-9]{20}$/);
  assert.match(record.accessToken ?? "", /^[\w-]{43}$/);
  assert.deepEqual(record, {
    ...plainRecord(record, clock.now()),
    metadata: { user: "abc" },
    environment: { A: "1" },
    limits: { memoryMiB: 64 },
  });
  assert.deepEqual(
    (await ledger.entries()).map((entry) => entry.record),
    [asStored(record)],
  );
  assert.equal(sandboxes.get(record.id), sandbox);
  const process = await sandbox.runtime.spawn({ path: "cat", args: [], env: {} });
  assert.equal(await domain.metric("running"), 1);

  await sandboxes.kill(record.id);
  assert.equal(sandbox.ended.reason, "killed");
  assert.deepEqual(await process.exit, { signal: "SIGKILL" });
  assert.throws(() => sandbox.runtime, fails("unavailable", /is not running/));
  assert.equal(sandboxes.find(record.id), undefined);
  const gone = fails(
    "not_found",
    /^Sandbox "i\w+" doesn't exist or you don't have access to it; sandbox not found$/,
  );
  assert.throws(() => sandboxes.get(record.id), gone);
  await assert.rejects(sandboxes.kill(record.id), gone);
  await assert.rejects(sandboxes.setTimeout(record.id, 1), gone);
  await assert.rejects(sandboxes.extend(record.id, 1), gone);
  assert.equal((await ledger.findEnded(record.id))?.reason, "killed");
  assert.equal(await domain.metric("created_total"), 1);
  assert.equal(await domain.metric("ended_total"), 1);
  assert.equal(await domain.metric("running"), 0);
  await assertNothingLeft(domain);
});

it("an impossible creation is refused with E2B's texts before it reaches a backend", async (context) => {
  const domain = await startDomain(context, {
    script: { onProvision: () => assert.fail("the backend was asked") },
  });
  const { sandboxes } = domain;
  const cases: readonly [Partial<CreateSandbox>, string, RegExp][] = [
    [{ template: "nope" }, "not_found", /^template 'nope' not found$/],
    [{ template: "a b" }, "invalid_argument", /^Invalid template reference: /],
    [{ timeoutMs: 0 }, "invalid_argument", /^Timeout must be greater than 0$/],
    [{ timeoutMs: -1 }, "invalid_argument", /^Timeout must be greater than 0$/],
    [{ timeoutMs: NaN }, "invalid_argument", /^Timeout must be a number$/],
    [{ timeoutMs: 24 * 60 * MINUTE_MS + 1 }, "invalid_argument", /^Timeout cannot be greater than 24 hours$/],
    [{ id: "Not-An-Id" }, "invalid_argument", /^Invalid sandbox ID$/],
    [{ id: "" }, "invalid_argument", /^Invalid sandbox ID$/],
    [{ backend: "nope" }, "not_found", /^backend 'nope' not found$/],
  ];
  for (const [request, code, message] of cases) {
    await assert.rejects(sandboxes.create({ ...base, ...request }), fails(code, message));
  }
  await assert.rejects(sandboxes.create(base, AbortSignal.abort()), fails("canceled", /canceled/));
  await assertNothingLeft(domain);
});

it("the maximum holds under a hundred parallel creations, and a place is free again after a kill", async (context) => {
  const gate = Promise.withResolvers<void>();
  let most = 0;
  let working = 0;
  const domain = await startDomain(context, {
    script: {
      async onProvision(step) {
        if (step === "reserve") working += 1;
        most = Math.max(most, working);
        await gate.promise;
        if (step === "start") working -= 1;
      },
    },
    settings: { maximum: 10, createConcurrency: 4 },
  });
  const { sandboxes, backend } = domain;
  const creations = Array.from({ length: 100 }, () => sandboxes.create(base));
  const settled = Promise.allSettled(creations);
  gate.resolve();
  const results = await settled;
  const made = results.filter((result) => result.status === "fulfilled");
  assert.equal(made.length, 10);
  assert.equal(backend.alive.sandboxes, 10);
  assert.ok(most <= 4, `${most} were made at the same time`);
  for (const result of results) {
    if (result.status === "rejected") {
      fails(
        "resource_exhausted",
        /^you have reached the maximum number of concurrent E2B sandboxes \(10\)\. If you need more, ask the operator of this server$/,
      )(result.reason);
    }
  }
  await sandboxes.kill(sandboxes.list()[0]?.record.id ?? "");
  await sandboxes.create(base);
  await assert.rejects(sandboxes.create(base), fails("resource_exhausted", /maximum/));
});

it("creations beyond the queue's limit are refused", async (context) => {
  const gate = Promise.withResolvers<void>();
  const domain = await startDomain(context, {
    script: { onProvision: () => gate.promise },
    settings: { createConcurrency: 1, createQueue: 2 },
  });
  const creations = Array.from({ length: 5 }, () => domain.sandboxes.create(base));
  const settled = Promise.allSettled(creations);
  gate.resolve();
  const results = await settled;
  assert.deepEqual(
    results.map(({ status }) => status),
    ["fulfilled", "fulfilled", "fulfilled", "rejected", "rejected"],
  );
  assert.equal((await domain.ledger.entries()).length, 3);
});

for (const step of ["reserve", "files", "start"] as const) {
  it(`a creation that fails or is canceled at step '${step}' leaves nothing`, async (context) => {
    let act: (signal: AbortSignal) => void | Promise<void> = () => {
      throw new SandboxError("disk_full", "no space left");
    };
    const domain = await startDomain(context, {
      script: {
        onProvision: (at, _spec, signal) => (at === step ? act(signal) : undefined),
      },
    });
    const { sandboxes } = domain;
    await assert.rejects(sandboxes.create(base), fails("resource_exhausted", /^no space left$/));
    await assertNothingLeft(domain);

    // A client that goes away, and a backend that only looks at the signal between its steps.
    const client = new AbortController();
    act = () => client.abort();
    await assert.rejects(sandboxes.create(base, client.signal), fails("canceled", /canceled/));
    await assertNothingLeft(domain);

    // Killed by another request while it is being created.
    act = () => void sandboxes.kill("fixed").catch(() => {});
    const killed = sandboxes.create({ ...base, id: "fixed" });
    await assert.rejects(killed, fails("aborted", /was ended while it was being made/));
    await assertNothingLeft(domain);
    assert.equal(await domain.metric("create_failures_total"), 3);
  });
}

it("a sandbox whose creator left is destroyed when it is ready, and never visible", async (context) => {
  let client = new AbortController();
  let failures = 0;
  const domain = await startDomain(context, {
    script: {
      onProvision: (step) => (step === "start" ? client.abort() : undefined),
      onDestroy() {
        failures -= 1;
        if (failures >= 0) throw new Error("busy");
      },
    },
    isDeaf: true,
  });
  const { sandboxes, clock, ledger } = domain;
  await assert.rejects(sandboxes.create(base, client.signal), fails("canceled", /canceled/));
  await assertNothingLeft(domain);

  // As above, with a destroy that fails at first: the client gets the error of its abort.
  failures = 4;
  client = new AbortController();
  const create = sandboxes.create({ ...base, id: "one" }, client.signal);
  const canceled = assert.rejects(create, fails("canceled", /canceled/));
  await clock.advance(2000);
  await canceled;
  await assert.rejects(sandboxes.kill("one"), fails("not_found", /sandbox not found/));
  await clock.advance(MINUTE_MS);
  assert.equal(await ledger.findEnded("one"), undefined);
  await assertNothingLeft(domain);
});

it("a creator that leaves during the last write gets no sandbox", async (context) => {
  const ledger = new FragileLedger();
  const domain = await startDomain(context, { ledger });
  const client = new AbortController();
  ledger.isFailing = ({ state }) => {
    if (state === "running") client.abort();
    return false;
  };
  await assert.rejects(domain.sandboxes.create(base, client.signal), fails("canceled", /canceled/));
  await assertNothingLeft(domain);
});

it("without a ledger entry no sandbox is made, but every sandbox can be ended", async (context) => {
  const ledger = new FragileLedger();
  const domain = await startDomain(context, { ledger });
  const { sandboxes, backend } = domain;
  for (const state of ["creating", "running"]) {
    ledger.isFailing = (record) => record.state === state;
    await assert.rejects(sandboxes.create(base), /disk full/);
    await assertNothingLeft(domain);
  }
  ledger.isFailing = () => false;
  const { record } = await sandboxes.create(base);
  ledger.isFailing = () => true;
  await assert.rejects(sandboxes.setTimeout(record.id, MINUTE_MS), /disk full/);
  await sandboxes.kill(record.id);
  assert.equal(backend.alive.sandboxes, 0);
});

it("a creation that waits for its turn can be canceled without reaching the backend", async (context) => {
  const gate = Promise.withResolvers<void>();
  const asked: string[] = [];
  const domain = await startDomain(context, {
    script: { onProvision: (_step, { id }) => (asked.push(id), gate.promise) },
    settings: { createConcurrency: 1 },
  });
  const first = domain.sandboxes.create({ ...base, id: "first" });
  const client = new AbortController();
  const second = domain.sandboxes.create({ ...base, id: "second" }, client.signal);
  client.abort();
  await assert.rejects(second, fails("canceled", /canceled/));
  gate.resolve();
  await first;
  assert.deepEqual([...new Set(asked)], ["first"]);
});

it("a slow creation is aborted; one that ignores the abort is left behind and cleaned up", async (context) => {
  const gate = Promise.withResolvers<void>();
  const domain = await startDomain(context, {
    script: {
      onProvision(step, { id }, signal) {
        if (step !== "start") return;
        if (id === "deaf") return gate.promise;
        return new Promise((_, reject) =>
          signal.addEventListener("abort", () => reject(new Error("told to stop"))),
        );
      },
    },
    settings: { createTimeout: "10s", destroyTimeout: "5s" },
  });
  const { sandboxes, clock, backend, ledger } = domain;
  const slow = assert.rejects(
    sandboxes.create({ ...base, id: "slow" }),
    fails("deadline_exceeded", /10000 ms/),
  );
  await clock.advance(10_000);
  await slow;
  const deaf = assert.rejects(
    sandboxes.create({ ...base, id: "deaf" }),
    fails("unavailable", /being undone/),
  );
  await clock.advance(10_000);
  assert.equal(sandboxes.find("deaf")?.record.state, "creating");
  const killed = assert.rejects(sandboxes.kill("deaf"), fails("unavailable", /being undone/));
  await clock.advance(5_000);
  await Promise.all([deaf, killed]);
  assert.equal(sandboxes.find("deaf"), undefined);
  assert.equal(backend.alive.sandboxes, 1);
  assert.equal((await ledger.entries()).length, 1);
  gate.resolve();
  await clock.advance(0);
  await assertNothingLeft(domain);
});

it("kills at the same time share one end, and only a destroyed sandbox counts as gone", async (context) => {
  const gate = Promise.withResolvers<void>();
  const attempts: number[] = [];
  const domain = await startDomain(context, {
    script: {
      async onDestroy(_id, attempt) {
        attempts.push(attempt);
        await gate.promise;
      },
    },
  });
  const { sandboxes, backend, ledger } = domain;
  const sandbox = await sandboxes.create({ ...base, id: "one" });
  let stateWhenTold: readonly unknown[] = [];
  sandbox.ended.addEventListener("abort", () => {
    stateWhenTold = [sandbox.record.state, sandboxes.find("one"), attempts.length];
  });
  const kills = [sandboxes.kill("one"), sandboxes.kill("one", "timed out"), sandboxes.setTimeout("one", 0)];
  const [third] = kills.splice(2);
  await assert.rejects(third as Promise<void>, fails("not_found", /sandbox not found/));
  assert.deepEqual(stateWhenTold, ["killing", undefined, 0]);
  await assert.rejects(sandboxes.create({ ...base, id: "one" }), fails("already_exists", /already exists/));
  assert.equal(backend.alive.sandboxes, 1);
  assert.equal((await ledger.entries())[0]?.endReason, "killed");
  gate.resolve();
  await Promise.all(kills);
  assert.deepEqual(attempts, [1]);
  assert.equal((await ledger.findEnded("one"))?.reason, "killed");
  await assertNothingLeft(domain);
});

it("a sandbox that cannot be destroyed stays in the ledger and is tried again until it is gone", async (context) => {
  let failures = 6;
  const domain = await startDomain(context, {
    script: {
      onDestroy() {
        failures -= 1;
        if (failures >= 0) throw new Error("busy");
      },
    },
  });
  const { sandboxes, clock, ledger, backend } = domain;
  await sandboxes.create({ ...base, id: "one" });
  const killed = assert.rejects(sandboxes.kill("one"), fails("unavailable", /keeps trying/));
  await clock.advance(1000);
  await killed;
  await assert.rejects(sandboxes.kill("one"), fails("not_found", /sandbox not found/));
  assert.equal((await ledger.entries())[0]?.record.state, "killing");
  assert.equal(await ledger.findEnded("one"), undefined);
  assert.equal(backend.alive.sandboxes, 1);
  await clock.advance(5 * MINUTE_MS);
  assert.equal((await ledger.findEnded("one"))?.reason, "killed");
  assert.equal(await domain.metric("destroy_failures_total"), 6);
  await assertNothingLeft(domain);
});

it("an attempt to destroy that hangs does not hold up the others", async (context) => {
  const domain = await startDomain(context, {
    script: {
      onDestroy: (id, attempt) => (id === "stuck" && attempt === 1 ? new Promise(() => {}) : undefined),
    },
    settings: { destroyConcurrency: 1, destroyTimeout: "5s" },
  });
  const { sandboxes, clock } = domain;
  await sandboxes.create({ ...base, id: "stuck" });
  await sandboxes.create({ ...base, id: "other" });
  const kills = Promise.all([sandboxes.kill("stuck"), sandboxes.kill("other")]);
  await clock.advance(6_000);
  await kills;
  await assertNothingLeft(domain);
});

it("a sandbox ends at its time, which can be moved both ways or only away", async (context) => {
  const domain = await startDomain(context);
  const { sandboxes, clock, ledger } = domain;
  const sandbox = await sandboxes.create(base);
  const { id } = sandbox.record;
  await sandboxes.extend(id, MINUTE_MS);
  assert.equal(sandbox.record.endsAtMs, clock.now() + 5 * MINUTE_MS, "extend came nearer");
  await Promise.all([sandboxes.extend(id, 9 * MINUTE_MS), sandboxes.extend(id, 8 * MINUTE_MS)]);
  assert.equal(sandbox.record.endsAtMs, clock.now() + 9 * MINUTE_MS);
  assert.equal((await ledger.entries())[0]?.record.endsAtMs, clock.now() + 9 * MINUTE_MS);
  await sandboxes.setTimeout(id, MINUTE_MS);
  await assert.rejects(
    sandboxes.setTimeout(id, 25 * 60 * MINUTE_MS),
    fails("invalid_argument", /^Max instance length exceeded$/),
  );
  await assert.rejects(
    sandboxes.extend(id, 25 * 60 * MINUTE_MS),
    fails("invalid_argument", /^Timeout cannot be greater than 24 hours$/),
  );
  await assert.rejects(sandboxes.setTimeout(id, NaN), fails("invalid_argument", /must be a number/));
  await clock.advance(MINUTE_MS - 1);
  assert.equal(sandboxes.find(id), sandbox);
  await clock.advance(1);
  assert.equal(sandbox.ended.reason, "timed out");
  assert.equal((await ledger.findEnded(id))?.reason, "timed out");
  await assertNothingLeft(domain);

  const second = await sandboxes.create(base);
  await sandboxes.setTimeout(second.record.id, -5);
  assert.equal(second.ended.reason, "timed out");
  await assertNothingLeft(domain);

  const endless = await sandboxes.create({ ...base, id: "debug", timeoutMs: undefined });
  await sandboxes.extend("debug", MINUTE_MS);
  await clock.advance(1000 * MINUTE_MS);
  assert.equal(endless.record.state, "running");
});

it("sandboxes are listed newest first, without those that end", async (context) => {
  const { sandboxes, clock } = await startDomain(context, {
    script: { onDestroy: () => new Promise(() => {}) },
  });
  for (const id of ["a", "b", "c"]) {
    await sandboxes.create({ ...base, id });
    await clock.advance(1);
  }
  sandboxes.kill("b").catch(() => {});
  assert.deepEqual(
    sandboxes.list().map(({ record }) => record.id),
    ["c", "a"],
  );
});

it("a stopping server makes no more sandboxes, gives up those in the making and ends the rest", async (context) => {
  const domain = await startDomain(context, {
    script: {
      onProvision: (step, { id }, signal) =>
        id === "late" && step === "start"
          ? new Promise((_, reject) =>
              signal.addEventListener("abort", () => reject(new Error("told to stop"))),
            )
          : undefined,
    },
  });
  const { sandboxes, backend, clock } = domain;
  const running = await sandboxes.create(base);
  const late = sandboxes.create({ ...base, id: "late" });
  const refused = assert.rejects(late, fails("aborted", /while it was being made/));
  await clock.advance(0);
  await domain.stop();
  await refused;
  await assert.rejects(sandboxes.create(base), fails("unavailable", /stopping/));
  assert.equal(running.ended.reason, "shutdown");
  assert.equal(backend.alive.sandboxes, 0);
  assert.equal(clock.pending, 0);
});

it("network rules are written to the ledger before they apply, one change after the other", async (context) => {
  const restricted: string[] = [];
  const first = Promise.withResolvers<void>();
  const domain = await startDomain(context, {
    script: {
      async onRestrict(id, { allowOut, denyOut }) {
        const entry = (await domain.ledger.entries()).find(({ record }) => record.id === id);
        assert.deepEqual(entry?.record.egress?.denyOut ?? [], denyOut.slice(-1));
        restricted.push(`${allowOut.join()} not ${denyOut.join()}`);
        if (restricted.length === 1) await first.promise;
      },
    },
  });
  const { sandboxes, backend } = domain;
  const egress = { allowOut: ["8.8.8.8"], denyOut: ["1.1.1.1"] };
  const { record } = await sandboxes.create({ ...base, allowInternetAccess: false, egress });
  assert.deepEqual(record.egress, egress);
  assert.deepEqual(backend.sandboxes.get(record.id)?.egress, {
    allowOut: ["8.8.8.8"],
    denyOut: [ALL_TRAFFIC, "1.1.1.1"],
  });
  const changes = [
    { allowInternetAccess: true, egress: { allowOut: [], denyOut: ["2.2.2.2"] } },
    { allowInternetAccess: false, egress: { allowOut: [], denyOut: ["3.3.3.3"] } },
    { allowInternetAccess: true, egress: undefined },
  ].map((policy) => sandboxes.setNetworkPolicy(record.id, policy));
  first.resolve();
  await Promise.all(changes);
  assert.deepEqual(restricted, [" not 2.2.2.2", " not 0.0.0.0/0,3.3.3.3", " not "]);
  const now = sandboxes.get(record.id).record;
  assert.deepEqual([now.allowInternetAccess, now.egress], [true, undefined]);
  assert.deepEqual(backend.sandboxes.get(record.id)?.egress, { allowOut: [], denyOut: [] });
});

it("rules that are invalid, or that the backend refuses, leave the old ones in force", async (context) => {
  const refusal = new SandboxError("network_rules_invalid", "no domains here");
  const domain = await startDomain(context, {
    script: {
      onRestrict(_id, { allowOut }) {
        if (allowOut.includes("example.com")) throw refusal;
      },
    },
  });
  const { sandboxes, ledger } = domain;
  const egress = { allowOut: [], denyOut: ["1.1.1.1"] };
  const { record } = await sandboxes.create({ ...base, egress });
  const domains = { allowOut: ["example.com"], denyOut: [ALL_TRAFFIC] };
  await assert.rejects(
    sandboxes.setNetworkPolicy(record.id, { allowInternetAccess: true, egress: domains }),
    refusal,
  );
  const senseless = { allowInternetAccess: true, egress: { allowOut: [], denyOut: ["example.com"] } };
  await assert.rejects(
    sandboxes.setNetworkPolicy(record.id, senseless),
    fails("invalid_argument", /denyOut/),
  );
  await assert.rejects(
    sandboxes.create({ ...base, egress: senseless.egress }),
    fails("invalid_argument", /denyOut/),
  );
  assert.deepEqual(sandboxes.get(record.id).record.egress, egress);
  assert.deepEqual(
    (await ledger.entries()).map((entry) => entry.record.egress),
    [egress],
  );
  await sandboxes.kill(record.id);
  const none = { allowInternetAccess: true, egress: undefined };
  await assert.rejects(sandboxes.setNetworkPolicy(record.id, none), fails("not_found", /sandbox not found/));
  await assertNothingLeft(domain);
});

it("a sandbox that ends while its rules change stays ended", async (context) => {
  const entered = Promise.withResolvers<void>();
  const leave = Promise.withResolvers<void>();
  const domain = await startDomain(context, {
    script: {
      async onRestrict() {
        entered.resolve();
        await leave.promise;
        throw new Error("it has no interface any more");
      },
    },
  });
  const { sandboxes } = domain;
  const { record } = await sandboxes.create(base);
  const policy = { allowInternetAccess: false, egress: undefined };
  const changed = assert.rejects(
    sandboxes.setNetworkPolicy(record.id, policy),
    fails("not_found", /not found/),
  );
  const waiting = assert.rejects(
    sandboxes.setNetworkPolicy(record.id, policy),
    fails("not_found", /not found/),
  );
  await entered.promise;
  await sandboxes.kill(record.id);
  leave.resolve();
  await changed;
  await waiting;
  await assertNothingLeft(domain);
});

it("a backend that cannot enforce rules gets none", async (context) => {
  const domain = await startDomain(context, { script: { networking: false } });
  const { sandboxes } = domain;
  const egress = { allowOut: [], denyOut: ["1.1.1.1"] };
  const refused = fails("invalid_argument", /backend 'memory' cannot restrict what its sandboxes reach/);
  await assert.rejects(sandboxes.create({ ...base, egress }), refused);
  await assertNothingLeft(domain);
  const { record } = await sandboxes.create(base);
  const policy = { allowInternetAccess: true, egress };
  await assert.rejects(sandboxes.setNetworkPolicy(record.id, policy), refused);
});

it("a sandbox of another id than was asked for is destroyed, and its creation fails", async (context) => {
  const domain = await startDomain(context);
  const other = new MemoryBackend({ name: "other" });
  const provision = other.provision.bind(other);
  other.provision = (spec, signal) => provision({ ...spec, id: "another" }, signal);
  domain.backends.add(other);
  await assert.rejects(
    domain.sandboxes.create({ ...base, backend: "other" }),
    fails("internal", /made sandbox 'another' for/),
  );
  assert.equal(other.alive.sandboxes, 0);
  await assertNothingLeft(domain);
});

it("a creation that failed leaves nothing in the record of all servers", async (context) => {
  const domain = await startDomain(context, { script: { onProvision: () => assert.fail("no space") } });
  const recorded = new Set<string>();
  domain.sharedRecords.use({
    add: async ({ id }) => void recorded.add(id),
    raise: async () => {},
    lower: async () => {},
    remove: async (id) => void recorded.delete(id),
  });
  await assert.rejects(domain.sandboxes.create(base), /no space/);
  assert.deepEqual(recorded, new Set());
});

it("a sandbox that only the server still has to remove counts no more for its owner", async (context) => {
  const domain = await startDomain(context, { script: { onDestroy: () => assert.fail("busy") } });
  const counted: number[] = [];
  domain.admissions.add({ counts: () => true, check: (_, existing) => void counted.push(existing.length) });
  const { record } = await domain.sandboxes.create(base);
  const killed = assert.rejects(domain.sandboxes.kill(record.id));
  await domain.clock.advance(MINUTE_MS);
  await killed;
  await domain.sandboxes.create(base);
  assert.equal(domain.backend.alive.sandboxes, 2);
  assert.deepEqual(counted, [0, 0]);
});
