import assert from "node:assert/strict";
import { it } from "node:test";
import type { Limits, Sandbox } from "../contract/backend.js";
import type { SandboxRecord } from "../model/live-sandbox.js";
import { assertNothingLeft, base, fails, FragileLedger, startDomain } from "../testing/start-domain.js";
import { eventually } from "../../testing/fake-clock.js";

const SETTINGS = {
  maximumLimits: { cpuCount: 4, memoryMiB: 4096 },
  templates: { base: { limits: { memoryMiB: 512, diskMiB: 2048, processes: 64 } } },
};

it("a sandbox has its creator's limits, which may be raised and lowered while it runs", async (context) => {
  const told: Limits[] = [];
  const onResize = (_id: string, limits: Limits): void => void told.push(limits);
  const domain = await startDomain(context, { script: { resizing: { onResize } }, settings: SETTINGS });
  const { sandboxes, ledger } = domain;
  const { record } = await sandboxes.create({ ...base, limits: { cpuCount: 2, memoryMiB: 1024 } });
  const limitsNow = (): Limits => sandboxes.get(record.id).record.limits;
  assert.deepEqual(limitsNow(), { cpuCount: 2, memoryMiB: 1024, diskMiB: 2048, processes: 64 });
  await sandboxes.setLimits(record.id, { cpuCount: 1.5 });
  assert.deepEqual(limitsNow(), { cpuCount: 1.5, memoryMiB: 1024, diskMiB: 2048, processes: 64 });
  await sandboxes.setLimits(record.id, { cpuCount: 0, memoryMiB: 0, diskMiB: 1024 });
  const last = { cpuCount: undefined, memoryMiB: 512, diskMiB: 1024, processes: 64 };
  assert.deepEqual(limitsNow(), last, "0 is what the template has, or the backend's default");
  assert.deepEqual(told.at(-1), last);
  const [entry] = await ledger.entries();
  assert.deepEqual(entry?.record.limits, JSON.parse(JSON.stringify(last)));
  assert.equal(entry?.record.isResizing, undefined);
  await sandboxes.kill(record.id);
  await assertNothingLeft(domain);
});

it("more than the operator allows is refused, at creation and later, and changes nothing", async (context) => {
  const { sandboxes } = await startDomain(context, { script: { resizing: {} }, settings: SETTINGS });
  const { record } = await sandboxes.create(base);
  for (const [limits, message] of [
    [
      { cpuCount: 5 },
      /^5 CPUs are more than a sandbox of template 'base' may have \(4\): see sandboxes\.maximumLimits\.\w+$/,
    ],
    [{ memoryMiB: 4097 }, /^4097 MiB of memory are more than .* \(4096\): see /],
    [{ diskMiB: 2049 }, /^2049 MiB of disk are more than .* \(2048\): see /],
  ] as const) {
    await assert.rejects(sandboxes.create({ ...base, limits }), fails("invalid_argument", message));
    await assert.rejects(sandboxes.setLimits(record.id, limits), fails("invalid_argument", message));
  }
  assert.deepEqual(sandboxes.get(record.id).record, record);
});

it("clients cannot choose a limit that neither the operator nor the template sets", async (context) => {
  const { sandboxes } = await startDomain(context);
  const wanted = { ...base, limits: { cpuCount: 1 } };
  await assert.rejects(
    sandboxes.create(wanted),
    fails("invalid_argument", /does not let clients choose CPUs/),
  );
});

it("where the operator sets no largest limit, that of the template is the largest, from its backend, too", async (context) => {
  const defaultLimits = { cpuCount: 2, memoryMiB: 1024, diskMiB: 4096, processes: 64 };
  const { sandboxes } = await startDomain(context, { script: { defaultLimits, resizing: {} } });
  const { record } = await sandboxes.create({ ...base, limits: { memoryMiB: 256 } });
  assert.equal(record.limits.memoryMiB, 256);
  await sandboxes.setLimits(record.id, { memoryMiB: 1024 });
  await assert.rejects(
    sandboxes.setLimits(record.id, { memoryMiB: 1025 }),
    fails("invalid_argument", /\(1024\): see sandboxes\.maximumLimits\.memoryMiB$/),
  );
});

it("a failed change leaves the old limits, in the ledger, too", async (context) => {
  let isFailing = true;
  const onResize = (): void => {
    if (isFailing) throw new Error("busy");
  };
  const { sandboxes, ledger } = await startDomain(context, {
    script: { resizing: { onResize } },
    settings: SETTINGS,
  });
  const { record } = await sandboxes.create({ ...base, limits: { cpuCount: 2 } });
  await assert.rejects(sandboxes.setLimits(record.id, { cpuCount: 3 }), /busy/);
  assert.equal(sandboxes.get(record.id).record.limits.cpuCount, 2);
  assert.equal((await ledger.entries())[0]?.record.limits.cpuCount, 2);
  isFailing = false;
  await sandboxes.setLimits(record.id, { cpuCount: 3 });
  assert.equal(sandboxes.get(record.id).record.limits.cpuCount, 3);
});

it("only a sandbox that runs, of a backend that can, is resized", async (context) => {
  const { sandboxes } = await startDomain(context, {
    script: { pausing: {}, resizing: {} },
    settings: SETTINGS,
  });
  const { record } = await sandboxes.create(base);
  await sandboxes.pause(record.id);
  await assert.rejects(sandboxes.setLimits(record.id, { cpuCount: 1 }), fails("aborted", /is not running$/));
  await sandboxes.kill(record.id);
  await assert.rejects(sandboxes.setLimits(record.id, { cpuCount: 1 }), fails("not_found", /not found/));
  const other = await startDomain(context, { settings: SETTINGS });
  const unable = await other.sandboxes.create(base);
  const refused = fails("failed_precondition", /^backend 'memory' on this host does not support resizing$/);
  await assert.rejects(other.sandboxes.setLimits(unable.record.id, { cpuCount: 1 }), refused);
});

it("admission checks of creations run for growth, too, and see earlier grants", async (context) => {
  const { sandboxes, admissions } = await startDomain(context, {
    script: { resizing: {} },
    settings: SETTINGS,
  });
  const asked: [state: string, wanted: number, others: number][] = [];
  const cpus = ({ limits }: Pick<SandboxRecord, "limits">): number => limits.cpuCount ?? 0;
  admissions.add({
    counts: () => true,
    check: (wanted, existing) => {
      const used = existing.reduce((total, record) => total + cpus(record), 0);
      asked.push([wanted.state, cpus(wanted), used]);
      if (used + cpus(wanted) > 5) throw new Error("too much");
      return undefined;
    },
  });
  const [one, two] = await Promise.all(
    [1, 1].map(async (cpuCount) => (await sandboxes.create({ ...base, limits: { cpuCount } })).record.id),
  );
  assert.ok(one && two);
  const outcomes = await Promise.allSettled([one, two].map((id) => sandboxes.setLimits(id, { cpuCount: 3 })));
  assert.deepEqual(outcomes.map(({ status }) => status).toSorted(), ["fulfilled", "rejected"]);
  asked.length = 0;
  const grown = outcomes[0]?.status === "fulfilled" ? one : two;
  await sandboxes.setLimits(grown, { cpuCount: 2 });
  assert.deepEqual(asked, [], "less is nobody's to refuse");
  await sandboxes.setLimits(grown, { cpuCount: 4 });
  assert.deepEqual(asked, [["running", 4, 1]]);
  await sandboxes.setLimits(grown, { diskMiB: 1024 });
  assert.equal(asked.length, 1);
  await sandboxes.setLimits(grown, { diskMiB: 2048 });
  assert.equal(asked.length, 2, "more disk is growth");
});

it("the next server completes a resize that a crash interrupted", async (context) => {
  const ledger = new FragileLedger();
  const stuck = Promise.withResolvers<void>();
  const told: (number | undefined)[] = [];
  const onResize = (_id: string, { cpuCount }: Limits): Promise<void> | undefined => {
    told.push(cpuCount);
    return told.length === 1 ? stuck.promise : undefined;
  };
  const first = await startDomain(context, {
    script: { resizing: { onResize } },
    settings: SETTINGS,
    ledger,
  });
  const { record } = await first.sandboxes.create({ ...base, limits: { cpuCount: 1 } });
  const resizing = first.sandboxes.setLimits(record.id, { cpuCount: 2 });
  await eventually("the backend is told", () => told.length === 1);

  // The ledger as the first server would leave it when killed now. The second server starts with it.
  const left = new FragileLedger();
  for (const entry of await ledger.entries()) await left.write(entry.record);
  const onRecover = (): readonly Sandbox[] => [...first.backend.sandboxes.values()];
  const second = await startDomain(context, { script: { onRecover }, settings: SETTINGS, ledger: left });
  assert.deepEqual(told, [2, 2]);
  assert.equal(second.sandboxes.get(record.id).record.limits.cpuCount, 2);
  assert.equal((await left.entries())[0]?.record.isResizing, undefined);
  stuck.resolve();
  await resizing;
});

it("limits that a backend could not raise are given back to the record of all servers", async (context) => {
  const onResize = (): void => assert.fail("busy");
  const { sandboxes, sharedRecords } = await startDomain(context, {
    script: { resizing: { onResize } },
    settings: SETTINGS,
  });
  const told: unknown[] = [];
  const note = (what: string) => async (sandbox: SandboxRecord | string) =>
    void told.push([what, typeof sandbox === "string" ? undefined : sandbox.limits.cpuCount]);
  sharedRecords.use({ add: note("add"), raise: note("raise"), lower: note("lower"), remove: note("remove") });
  const { record } = await sandboxes.create({ ...base, limits: { cpuCount: 1 } });
  await assert.rejects(sandboxes.setLimits(record.id, { cpuCount: 2 }), /busy/);
  assert.deepEqual(told, [
    ["add", 1],
    ["raise", 2],
    ["lower", 1],
  ]);
});
