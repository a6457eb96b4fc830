import assert from "node:assert/strict";
import { it } from "node:test";
import type { CreateSandbox } from "./sandboxes.js";
import {
  assertNothingLeft,
  base,
  fails,
  FragileLedger,
  MINUTE_MS,
  startDomain,
} from "../testing/start-domain.js";

const DAY_MS = 24 * 60 * MINUTE_MS;
const pausing = {};
const awakened: CreateSandbox = { ...base, onTimeout: "pause", autoResume: true };

it("a paused sandbox serves nothing, stays until it is resumed, and goes on with a new end", async (context) => {
  const { sandboxes, backend, clock, ledger, metric } = await startDomain(context, { script: { pausing } });
  const sandbox = await sandboxes.create(base);
  const { id } = sandbox.record;
  await sandboxes.pause(id);
  assert.equal(backend.sandboxes.get(id)?.isPaused, true);
  assert.equal(sandbox.record.state, "paused");
  assert.equal(sandbox.isReachable, false);
  assert.throws(() => sandbox.runtime, fails("unavailable", /is not running/));
  assert.equal((await sandbox.stats()).cpuCount, 1);
  assert.equal((await ledger.entries())[0]?.record.state, "paused");
  await assert.rejects(sandboxes.use(sandbox), fails("aborted", /still transitioning/));
  await assert.rejects(sandboxes.setTimeout(id, 1000), fails("not_found", /it is paused/));
  await assert.rejects(sandboxes.extend(id, 1000), fails("not_found", /it is paused/));
  await assert.rejects(sandboxes.pause(id), fails("aborted", /is already paused/));
  await clock.advance(DAY_MS);
  assert.equal(sandboxes.find(id), sandbox);
  assert.deepEqual([await metric("running"), await metric("paused")], [0, 1]);

  assert.equal(await sandboxes.resume(id, MINUTE_MS), true);
  assert.equal(await sandboxes.resume(id, DAY_MS / 2), false);
  assert.equal(backend.sandboxes.get(id)?.isPaused, false);
  assert.equal(sandbox.record.endsAtMs, clock.now() + MINUTE_MS);
  assert.equal((await ledger.entries())[0]?.record.state, "running");
  await clock.advance(MINUTE_MS);
  assert.equal(sandboxes.find(id), undefined);
});

it("a paused sandbox is removed after its time", async (context) => {
  const domain = await startDomain(context, { script: { pausing }, settings: { pausedKept: "2d" } });
  const { record } = await domain.sandboxes.create({ ...base, onTimeout: "pause" });
  await domain.clock.advance(5 * MINUTE_MS);
  assert.equal(domain.sandboxes.get(record.id).record.state, "paused");
  await domain.clock.advance(2 * DAY_MS);
  await assertNothingLeft(domain);
  assert.equal((await domain.ledger.findEnded(record.id))?.reason, "timed out");
});

it("a request resumes a sandbox with autoResume, and its use keeps it from pausing", async (context) => {
  const { sandboxes, clock, metric } = await startDomain(context, { script: { pausing } });
  const sandbox = await sandboxes.create({ ...awakened, timeoutMs: MINUTE_MS });
  const { id } = sandbox.record;
  const state = (): string => sandboxes.get(id).record.state;
  const stream = await sandboxes.use(sandbox);
  await clock.advance(10 * MINUTE_MS);
  assert.equal(state(), "running", "a request that is being served keeps it running");
  stream();
  stream();
  const another = await sandboxes.use(sandbox);
  await clock.advance(10 * MINUTE_MS);
  assert.equal(state(), "running", "an end that is said twice counts once");
  another();
  await clock.advance(MINUTE_MS / 2);
  (await sandboxes.use(sandbox))();
  await clock.advance(MINUTE_MS - 1);
  assert.equal(state(), "running", "its time counts from its last use");
  await clock.advance(1);
  assert.equal(state(), "paused");
  assert.equal(sandbox.isReachable, true);

  const [one, two] = await Promise.all([sandboxes.use(sandbox), sandboxes.use(sandbox)]);
  assert.equal(state(), "running");
  assert.equal(await metric("resumptions_total"), 1);
  one();
  two();
  assert.equal(sandbox.record.endsAtMs, clock.now() + 5 * MINUTE_MS, "at least five minutes");
});

it("a sandbox without autoResume pauses at its end even while it is used", async (context) => {
  const { sandboxes, clock } = await startDomain(context, { script: { pausing } });
  const sandbox = await sandboxes.create({ ...base, onTimeout: "pause", timeoutMs: MINUTE_MS });
  await sandboxes.use(sandbox);
  await clock.advance(MINUTE_MS);
  assert.equal(sandbox.record.state, "paused");
  assert.equal(sandbox.isReachable, false);
  await sandboxes.resume(sandbox.record.id, MINUTE_MS);
  await sandboxes.setTimeout(sandbox.record.id, 0);
  assert.equal(sandbox.record.state, "paused", "a time-out of nothing is its end");
});

it("changes of one sandbox run one after the other, and a kill overrides all", async (context) => {
  const gates: (() => void)[] = [];
  const wait = () => new Promise<void>((resolve) => gates.push(resolve));
  const domain = await startDomain(context, { script: { pausing: { onPause: wait, onResume: wait } } });
  const { sandboxes } = domain;
  const { record } = await sandboxes.create(base);
  const open = async (): Promise<void> => {
    while (gates.length === 0) await Promise.resolve();
    gates.shift()?.();
  };
  const paused = [sandboxes.pause(record.id), sandboxes.pause(record.id)];
  const resumed = [sandboxes.resume(record.id, MINUTE_MS), sandboxes.resume(record.id, MINUTE_MS)];
  await open();
  await Promise.all(paused);
  await open();
  assert.deepEqual(await Promise.all(resumed), [true, true]);
  assert.equal(sandboxes.get(record.id).record.state, "running");

  const killedWhile = async (id: string, change: Promise<unknown>): Promise<void> => {
    const failed = assert.rejects(change, fails("aborted", /is being killed/));
    await sandboxes.kill(id);
    await open();
    await failed;
  };
  await killedWhile(record.id, Promise.all([sandboxes.pause(record.id), sandboxes.pause(record.id)]));
  const other = await sandboxes.create(base);
  await Promise.all([sandboxes.pause(other.record.id), open()]);
  await killedWhile(other.record.id, sandboxes.resume(other.record.id, MINUTE_MS));
  await assertNothingLeft(domain);
});

it("a pause that fails leaves a sandbox that runs, and is tried again at its end", async (context) => {
  let failures = 1;
  const onPause = (): void => {
    if (failures > 0) {
      failures -= 1;
      throw new Error("frozen solid");
    }
  };
  const { sandboxes, clock, metric } = await startDomain(context, { script: { pausing: { onPause } } });
  const sandbox = await sandboxes.create({ ...base, onTimeout: "pause" });
  const endsAtMs = sandbox.record.endsAtMs;
  await assert.rejects(sandboxes.pause(sandbox.record.id), fails("unavailable", /could not be paused/));
  assert.equal(sandbox.record.state, "running");
  assert.equal(sandbox.record.endsAtMs, endsAtMs);
  failures = 1;
  await clock.advance(5 * MINUTE_MS);
  assert.equal(sandbox.record.state, "running");
  await clock.advance(MINUTE_MS);
  assert.equal(sandbox.record.state, "paused");
  assert.equal(await metric("pause_failures_total"), 2);
});

it("a resumption that fails leaves a paused sandbox, whether the backend or the ledger failed", async (context) => {
  const ledger = new FragileLedger();
  let isStuck = true;
  const onResume = (): void => {
    if (isStuck) throw new Error("frozen solid");
  };
  const { sandboxes } = await startDomain(context, { script: { pausing: { onResume } }, ledger });
  const sandbox = await sandboxes.create(base);
  const { id } = sandbox.record;
  await sandboxes.pause(id);
  await assert.rejects(sandboxes.resume(id, MINUTE_MS), fails("unavailable", /could not be resumed/));
  assert.deepEqual([sandbox.record.state, (await ledger.entries())[0]?.record.state], ["paused", "paused"]);
  isStuck = false;
  await sandboxes.resume(id, MINUTE_MS);
  ledger.isFailing = ({ state }) => state === "paused";
  await assert.rejects(sandboxes.pause(id), fails("unavailable", /could not be paused/));
  assert.equal(sandbox.runtime.id, id);
});

it("a pause that a backend cannot do is refused at creation", async (context) => {
  const domain = await startDomain(context);
  const { sandboxes } = domain;
  const refusal = fails("failed_precondition", /backend 'memory' on this host does not support pausing/);
  await assert.rejects(sandboxes.create({ ...base, onTimeout: "pause" }), refusal);
  await assert.rejects(
    sandboxes.create({ ...base, autoResume: true }),
    fails("invalid_argument", /autoResume/),
  );
  await assertNothingLeft(domain);
  const { record } = await sandboxes.create(base);
  await assert.rejects(sandboxes.pause(record.id), refusal);
  assert.equal(sandboxes.get(record.id).record.state, "running");
});

it("a pause without memory ends processes and connections, keeps all else, and the sandbox begins anew", async (context) => {
  const readinessProbe = { type: "shell" as const, command: ["ready"] };
  let attempts = 0;
  const programs = {
    ready: async () => ((attempts += 1) > 0 ? 0 : 1),
    sleep: () => new Promise<never>(() => {}),
  };
  const script = { pausing, stopping: {}, programs, ports: { 80: () => {} } };
  const settings = { templates: { base: { readinessProbe } } };
  const { sandboxes, backend, clock, ledger, metric } = await startDomain(context, { script, settings });
  const kept = { metadata: { kept: "yes" }, environment: { A: "1" } };
  const sandbox = await sandboxes.create({ ...base, ...kept, secure: true });
  const { id, accessToken } = sandbox.record;
  await sandbox.runtime.files.makeDir("/home/user/kept");
  const running = await sandbox.runtime.spawn({ path: "sleep", args: [], env: {} });
  const connection = await sandbox.runtime.dial(80, new AbortController().signal);

  await sandboxes.pause(id, { keepsMemory: false });
  assert.equal(sandbox.ended.aborted, true, "who keeps something of its processes is not told");
  assert.equal((await running.exit).signal, "SIGKILL");
  assert.deepEqual([backend.alive.processes, connection.destroyed], [0, true]);
  const paused = sandboxes.get(id);
  assert.notEqual(paused, sandbox);
  assert.equal(paused.ended.aborted, false);
  assert.deepEqual([paused.record.state, await metric("paused"), await metric("running")], ["paused", 1, 0]);
  assert.equal((await paused.stats()).cpuCount, 1);
  await assert.rejects(sandboxes.pause(id, { keepsMemory: false }), fails("aborted", /is already paused/));
  await assert.rejects(sandboxes.use(sandbox), fails("aborted", /still transitioning/));
  assert.equal((await ledger.entries())[0]?.record.isStopped, true);

  const resuming = [sandboxes.resume(id, MINUTE_MS), sandboxes.resume(id, MINUTE_MS)];
  assert.deepEqual(await Promise.all(resuming), [true, true]);
  assert.equal(attempts, 2, "it was not asked whether it is ready");
  const { record, runtime } = sandboxes.get(id);
  const { state, metadata, environment, isStopped } = record;
  assert.deepEqual(
    { state, metadata, environment, isStopped },
    { state: "running", ...kept, isStopped: undefined },
  );
  assert.deepEqual([record.accessToken, record.endsAtMs], [accessToken, clock.now() + MINUTE_MS]);
  await runtime.files.stat("/home/user/kept");
  await clock.advance(MINUTE_MS);
  assert.equal(sandboxes.find(id), undefined);
});

it("a sandbox may drop its memory at its end, and at a client's resumption", async (context) => {
  const { sandboxes, backend, clock } = await startDomain(context, { script: { pausing, stopping: {} } });
  const { record } = await sandboxes.create({
    ...awakened,
    autoResume: false,
    keepsMemory: false,
    timeoutMs: MINUTE_MS,
  });
  await clock.advance(MINUTE_MS);
  assert.equal(backend.sandboxes.get(record.id)?.isStopped, true);
  await sandboxes.resume(record.id, MINUTE_MS);
  assert.equal(sandboxes.get(record.id).record.state, "running");
  await sandboxes.pause(record.id);
  const paused = sandboxes.get(record.id);
  assert.equal(backend.sandboxes.get(record.id)?.isPaused, true);
  assert.equal(await sandboxes.resume(record.id, MINUTE_MS, { keepsMemory: false }), true);
  assert.notEqual(sandboxes.get(record.id), paused, "it goes on with the processes that it had");
  await clock.advance(MINUTE_MS);
  await sandboxes.kill(record.id);
  assert.equal(backend.alive.sandboxes, 0);
});

it("a request does not resume a sandbox whose processes are gone, and none is made to", async (context) => {
  const { sandboxes } = await startDomain(context, { script: { pausing, stopping: {} } });
  await assert.rejects(
    sandboxes.create({ ...awakened, keepsMemory: false }),
    fails("invalid_argument", /cannot be combined with autoResume/),
  );
  const { id } = (await sandboxes.create(awakened)).record;
  await sandboxes.pause(id, { keepsMemory: false });
  assert.equal(sandboxes.get(id).isReachable, false);
  await assert.rejects(sandboxes.use(sandboxes.get(id)), fails("aborted", /still transitioning/));
  assert.equal(sandboxes.get(id).record.state, "paused");
  assert.equal(await sandboxes.resume(id, MINUTE_MS), true);
  await sandboxes.pause(id);
  (await sandboxes.use(sandboxes.get(id)))();
  assert.equal(sandboxes.get(id).record.state, "running", "its memory was kept this time");
});

it("a stop or a start that fails leaves it paused, and a kill overrides both", async (context) => {
  let failing: "stop" | "start" | undefined;
  let gate = Promise.withResolvers<void>();
  const ledger = new FragileLedger();
  const stopping = {
    onStop: () => void (failing === "stop" && assert.fail("stop")),
    onStart: async () => (failing === "start" ? assert.fail("start") : gate.promise),
  };
  const domain = await startDomain(context, { script: { pausing, stopping }, ledger });
  const { sandboxes, backend } = domain;
  const { record } = await sandboxes.create(base);
  failing = "stop";
  await sandboxes.pause(record.id, { keepsMemory: false });
  assert.equal(backend.sandboxes.get(record.id)?.isStopped, false);
  failing = "start";
  await assert.rejects(
    sandboxes.resume(record.id, MINUTE_MS),
    fails("unavailable", /could not be resumed: start/),
  );
  assert.equal(sandboxes.get(record.id).record.state, "paused");
  failing = undefined;
  ledger.isFailing = ({ state }) => state === "running";
  gate.resolve();
  await assert.rejects(sandboxes.resume(record.id, MINUTE_MS), fails("unavailable", /disk full/));
  assert.equal(backend.sandboxes.get(record.id)?.isStopped, true, "what had begun is stopped again");
  ledger.isFailing = () => false;
  gate = Promise.withResolvers();
  const resuming = assert.rejects(
    sandboxes.resume(record.id, MINUTE_MS),
    fails("aborted", /is being killed/),
  );
  await sandboxes.kill(record.id);
  gate.resolve();
  await resuming;
  await assertNothingLeft(domain);
});

it("a backend that cannot stop its sandboxes refuses to drop their memory", async (context) => {
  const { sandboxes } = await startDomain(context, { script: { pausing } });
  const refused = fails("failed_precondition", /does not support pausing without memory/);
  await assert.rejects(sandboxes.create({ ...base, onTimeout: "pause", keepsMemory: false }), refused);
  const { record } = await sandboxes.create(base);
  await assert.rejects(sandboxes.pause(record.id, { keepsMemory: false }), refused);
  await sandboxes.pause(record.id);
  await assert.rejects(sandboxes.resume(record.id, MINUTE_MS, { keepsMemory: false }), refused);
  assert.equal(await sandboxes.resume(record.id, MINUTE_MS), true);
});
