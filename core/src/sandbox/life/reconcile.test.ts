import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import { Registry } from "prom-client";
import type { z } from "zod";
import { BootError } from "../../kernel/errors.js";
import { createLogger } from "../../observe/logger.js";
import { fakeClock, type FakeClock } from "../../testing/fake-clock.js";
import { MemoryBackend, type MemoryBackendOptions } from "../../testing/memory-backend.js";
import { createSandboxDomain, type SandboxDomain } from "../domain.js";
import { ALL_TRAFFIC } from "../contract/egress-rules.js";
import type { SandboxRecord, SandboxState } from "../model/live-sandbox.js";
import { sandboxesConfig } from "../model/sandboxes-config.js";
import { SqliteLedger } from "../ledger/sqlite-ledger.js";
import { asStored } from "../testing/start-domain.js";

const MINUTE_MS = 60_000;

interface World {
  readonly dataDir: string;
  readonly clock: FakeClock;
  /** A server on the world's data directory, not started. */
  readonly server: (
    backends: readonly MemoryBackend[],
    settings?: z.input<typeof sandboxesConfig>,
  ) => SandboxDomain;
}

function createWorld(context: TestContext): World {
  const dataDir = mkdtempSync(join(tmpdir(), "coppice-reconcile-"));
  const clock = fakeClock();
  context.after(() => rmSync(dataDir, { recursive: true, force: true }));
  return {
    dataDir,
    clock,
    server(backends, settings = {}) {
      const domain = createSandboxDomain({
        config: sandboxesConfig.parse(settings),
        dataDir,
        clock,
        log: createLogger("silent"),
        metrics: new Registry(),
      });
      for (const backend of backends) domain.backends.add(backend);
      context.after(async () => {
        const stopped = domain.stop();
        await clock.advance(10 * MINUTE_MS);
        await stopped;
      });
      return domain;
    },
  };
}

/** Simulates `kill -9`: the ledger stays as it is, and no code of the server runs any more. */
async function crash(domain: SandboxDomain): Promise<void> {
  await domain.ledger.close();
}

function recordOf(
  clock: FakeClock,
  id: string,
  state: SandboxState,
  leftMs: number | undefined,
): SandboxRecord {
  return {
    id,
    backend: "memory",
    template: "base",
    snapshot: undefined,
    state,
    startedAtMs: clock.now() - MINUTE_MS,
    endsAtMs: leftMs === undefined ? undefined : clock.now() + leftMs,
    timeoutMs: MINUTE_MS,
    onTimeout: "kill",
    autoResume: false,
    metadata: {},
    environment: {},
    accessToken: "token",
    trafficAccessToken: undefined,
    maskRequestHost: undefined,
    owner: "default",
    limits: {},
    allowInternetAccess: true,
    egress: undefined,
    mounts: [],
  };
}

it("every combination of the ledger's and the backend's state is reconciled", async (context) => {
  const { dataDir, clock, server } = createWorld(context);
  const backend = new MemoryBackend();
  const states = [
    ["running", undefined, "running", undefined],
    ["endless", undefined, "running", undefined],
    ["over", undefined, "running", undefined],
    ["creating", undefined, "creating", undefined],
    ["killing", "killed", "killing", "killed"],
    ["undoing", undefined, "killing", undefined],
  ] as const;
  const ledger = new SqliteLedger({ dataDir, endedKept: 100 });
  await ledger.open();
  for (const [name, reason, state] of states) {
    for (const where of ["found", "lost"]) {
      const leftMs = name === "endless" ? undefined : name === "over" ? 0 : MINUTE_MS;
      const record = recordOf(clock, name + where, state, leftMs);
      await ledger.write(record, { endReason: reason });
      if (where === "found") await backend.provision({ ...record }, new AbortController().signal);
    }
  }
  await ledger.write({ ...recordOf(clock, "elsewhere", "running", MINUTE_MS), backend: "other" });
  await backend.provision(recordOf(clock, "unknown", "running", 0), new AbortController().signal);
  await ledger.close();

  const domain = server([backend]);
  await domain.start();
  const served = domain.sandboxes.list().map(({ record }) => record.id);
  assert.deepEqual(served, ["endlessfound", "runningfound"]);
  assert.deepEqual([...backend.sandboxes.keys()].toSorted(), ["endlessfound", "runningfound"]);
  assert.equal((await domain.sandboxes.get("runningfound").runtime.stats()).cpuCount, 1);
  assert.deepEqual((await domain.ledger.entries()).map(({ record }) => record.id).toSorted(), [
    "elsewhere",
    "endlessfound",
    "runningfound",
  ]);
  const reasons: Record<string, string | undefined> = {};
  for (const [name] of states) {
    for (const where of ["found", "lost"]) {
      reasons[name + where] = (await domain.ledger.findEnded(name + where))?.reason;
    }
  }
  assert.deepEqual(reasons, {
    runningfound: undefined,
    runninglost: "backend lost",
    endlessfound: undefined,
    endlesslost: "backend lost",
    overfound: "timed out",
    overlost: "backend lost",
    creatingfound: undefined,
    creatinglost: undefined,
    killingfound: "killed",
    killinglost: "killed",
    undoingfound: undefined,
    undoinglost: undefined,
  });
  await clock.advance(MINUTE_MS);
  assert.equal(
    (await domain.ledger.findEnded("runningfound"))?.reason,
    "timed out",
    "its deadline was not armed",
  );
  assert.deepEqual([...backend.sandboxes.keys()], ["endlessfound"]);
});

it("a crash at any step of a sandbox's life leaves nothing wrong after the next start", async (context) => {
  const cases: readonly (readonly [crashAt: string, survives: boolean, reason: string | undefined])[] = [
    ["reserve", false, undefined],
    ["files", false, undefined],
    ["start", false, undefined],
    ["running", true, undefined],
    ["destroy", false, "killed"],
  ];
  for (const [crashAt, survives, reason] of cases) {
    const { server } = createWorld(context);
    const crashed = Promise.withResolvers<void>();
    let hasCrashed = false;
    const crashHere = async (at: string): Promise<void> => {
      if (at !== crashAt || hasCrashed) return;
      hasCrashed = true;
      await crash(first);
      crashed.resolve();
      await new Promise(() => {});
    };
    const backend = new MemoryBackend({ onProvision: crashHere, onDestroy: () => crashHere("destroy") });
    const first = server([backend], { destroyTimeout: "1s", createTimeout: "1s" });
    await first.start();
    const life = (async (): Promise<void> => {
      await first.sandboxes.create({ id: "one", template: "base", timeoutMs: MINUTE_MS, secure: true });
      await crashHere("running");
      await first.sandboxes.kill("one");
    })();
    life.catch(() => {});
    await crashed.promise;

    const second = server([backend]);
    await second.start();
    assert.equal(second.sandboxes.find("one") !== undefined, survives, `served after ${crashAt}`);
    assert.equal(backend.alive.sandboxes, survives ? 1 : 0, `alive after ${crashAt}`);
    assert.equal((await second.ledger.entries()).length, survives ? 1 : 0, `entries after ${crashAt}`);
    assert.equal((await second.ledger.findEnded("one"))?.reason, reason, `reason after ${crashAt}`);
  }
});

it("sandboxes that are to be kept outlive a graceful stop with their time and token", async (context) => {
  const { clock, server } = createWorld(context);
  const backend = new MemoryBackend();
  const settings = { onShutdown: "keep" } as const;
  const first = server([backend], settings);
  await first.start();
  const made = await first.sandboxes.create({ template: "base", timeoutMs: MINUTE_MS, secure: true });
  await first.stop();
  assert.equal(made.ended.aborted, false);
  assert.equal(clock.pending, 0);
  await clock.advance(MINUTE_MS / 2);
  const second = server([backend], settings);
  await second.start();
  assert.deepEqual(second.sandboxes.get(made.record.id).record, asStored(made.record));
  await second.sandboxes.kill(made.record.id);
  assert.equal(backend.alive.sandboxes, 0);
});

it("a failed removal at the start does not keep the server from serving and is retried", async (context) => {
  const { clock, server } = createWorld(context);
  let isBusy = true;
  const backend = new MemoryBackend({
    onDestroy() {
      if (isBusy) throw new Error("busy");
    },
  });
  await backend.provision(recordOf(clock, "unknown", "running", 0), new AbortController().signal);
  const domain = server([backend]);
  const started = domain.start();
  await clock.advance(10_000);
  await started;
  assert.equal(backend.alive.sandboxes, 1);
  isBusy = false;
  await clock.advance(2 * MINUTE_MS);
  assert.equal(backend.alive.sandboxes, 0);
});

it("a failed start reports every reason at once and can be undone", async (context) => {
  const { server } = createWorld(context);
  const refuse = (message: string): MemoryBackendOptions => ({
    onCheck() {
      throw new Error(message);
    },
  });
  const domain = server(
    [
      new MemoryBackend({ name: "one", ...refuse("no mount") }),
      new MemoryBackend({ name: "two", ...refuse("no zfs") }),
    ],
    { templates: { base: {}, other: { backend: "three" } } },
  );
  await assert.rejects(domain.start(), (error: unknown) => {
    assert.ok(error instanceof BootError);
    assert.deepEqual(
      error.problems.map(({ message }) => message),
      [
        "sandboxes.defaultBackend: choose one of the backends; enabled are one, two",
        "sandboxes.templates.other.backend: there is no backend 'three'; enabled are one, two",
        "backend 'one': no mount",
        "backend 'two': no zfs",
      ],
    );
    return true;
  });
  await domain.stop();

  const deaf = new MemoryBackend({
    onRecover() {
      throw new Error("cannot list jails");
    },
  });
  const second = server([deaf]);
  await assert.rejects(
    second.start(),
    /backend 'memory' could not take stock of its sandboxes: cannot list jails/,
  );
  await second.stop();
});

it("the next server pauses a paused sandbox again, and late one whose pause was due", async (context) => {
  const { clock, server } = createWorld(context);
  const backend = new MemoryBackend({ pausing: {} });
  const domain = server([backend]);
  await domain.start();
  const wanted = { template: "base", timeoutMs: MINUTE_MS, secure: true };
  const paused = await domain.sandboxes.create(wanted);
  await domain.sandboxes.pause(paused.record.id);
  // State that a backend leaves which resumes sandboxes to test them.
  await backend.sandboxes.get(paused.record.id)?.pausing?.resume();
  const due = await domain.sandboxes.create({ ...wanted, onTimeout: "pause" });
  await crash(domain);
  clock.now = (
    (now) => () =>
      now + 2 * MINUTE_MS
  )(clock.now());

  const next = server([backend]);
  await next.start();
  assert.equal(next.sandboxes.get(paused.record.id).record.state, "paused");
  assert.equal(backend.sandboxes.get(paused.record.id)?.isPaused, true);
  await clock.advance(0);
  assert.equal(next.sandboxes.get(due.record.id).record.state, "paused");
});

it("a sandbox that cannot be paused again is reported as running", async (context) => {
  const { clock, server } = createWorld(context);
  let isBroken = false;
  const onPause = (): void => {
    if (isBroken) throw new Error("no freezer");
  };
  const backend = new MemoryBackend({ pausing: { onPause } });
  const domain = server([backend]);
  await domain.start();
  const { record } = await domain.sandboxes.create({ template: "base", timeoutMs: MINUTE_MS, secure: true });
  await domain.sandboxes.pause(record.id);
  await crash(domain);
  isBroken = true;
  const next = server([backend]);
  await next.start();
  const { state, endsAtMs } = next.sandboxes.get(record.id).record;
  assert.deepEqual({ state, endsAtMs }, { state: "running", endsAtMs: clock.now() + MINUTE_MS });
});

it("the ledger's network rules are applied to an adopted sandbox, or it is ended", async (context) => {
  const { dataDir, clock, server } = createWorld(context);
  const backend = new MemoryBackend({
    onRestrict(id) {
      if (id === "failing") throw new Error("no rules today");
    },
  });
  const helpless = new MemoryBackend({ name: "helpless", networking: false });
  const egress = { allowOut: ["8.8.8.8"], denyOut: [] };
  const ledger = new SqliteLedger({ dataDir, endedKept: 100 });
  await ledger.open();
  for (const [id, by] of [
    ["changed", backend],
    ["failing", backend],
    ["open", helpless],
    ["escaped", helpless],
  ] as const) {
    const record = { ...recordOf(clock, id, "running", MINUTE_MS), backend: by.name };
    // The backend's rules differ from those in the ledger.
    await by.provision({ ...record, egress: undefined }, new AbortController().signal);
    await ledger.write(id === "open" ? record : { ...record, allowInternetAccess: false, egress });
  }
  await ledger.close();
  const domain = server([backend, helpless], { defaultBackend: "memory" });
  await domain.start();
  assert.deepEqual(
    domain.sandboxes
      .list()
      .map(({ record }) => record.id)
      .toSorted(),
    ["changed", "open"],
  );
  const kept = { allowOut: ["8.8.8.8"], denyOut: [ALL_TRAFFIC] };
  assert.deepEqual(backend.sandboxes.get("changed")?.egress, kept);
  assert.deepEqual([...backend.sandboxes.keys(), ...helpless.sandboxes.keys()], ["changed", "open"]);
  for (const id of ["failing", "escaped"]) {
    assert.equal((await domain.ledger.findEnded(id))?.reason, "backend lost");
  }
});
