import assert from "node:assert/strict";
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { it } from "node:test";
import { definePlugin, SandboxError } from "@coppice/core";
import { runConformance } from "./run-conformance.js";
import { MemoryBackend, memoryBackend } from "@coppice/core/testing";
import type { Ability, ConformanceCase, ConformanceSubject, Need } from "./kit/conformance-case.js";
import { conformanceCases } from "./conformance-cases.js";
import { runCase } from "./run-case.js";

function subjectOf(backend: MemoryBackend, more: Partial<ConformanceSubject> = {}): ConformanceSubject {
  return { backend, ...more, [Symbol.asyncDispose]: () => Promise.resolve() };
}

function caseOf(run: ConformanceCase["run"], more: Partial<ConformanceCase> = {}): ConformanceCase {
  return { name: "a case", group: "process", run, ...more };
}

it("a case that keeps its promise passes, in a sandbox that is gone afterwards", async () => {
  const backend = new MemoryBackend();
  const seen: string[] = [];
  const each = caseOf(async (context) => {
    seen.push(context.sandbox.id, (await context.provision()).id);
  });
  const result = await runCase(each, subjectOf(backend));
  assert.equal(result.outcome, "passed", result.reason);
  assert.equal(new Set(seen).size, 2);
  assert.equal(backend.alive.sandboxes, 0);
});

it("a case that breaks its promise fails with what it threw, and its sandbox is gone all the same", async () => {
  const backend = new MemoryBackend();
  const broken = new Error("broken promise");
  const result = await runCase(
    caseOf(() => Promise.reject(broken)),
    subjectOf(backend),
  );
  assert.equal(result.outcome, "failed");
  assert.equal(result.error, broken);
  assert.equal(backend.alive.sandboxes, 0);
});

it("remains of a sandbox fail a case that passed", async () => {
  const leaks = (): Promise<string[]> => Promise.resolve(["dataset pool/x"]);
  const result = await runCase(
    caseOf(() => Promise.resolve()),
    subjectOf(new MemoryBackend(), { leaks }),
  );
  assert.equal(result.outcome, "failed");
  assert.equal(result.reason, "left behind: dataset pool/x");
});

it("a sandbox that cannot be destroyed fails a case that passed", async () => {
  const backend = new MemoryBackend({ onDestroy: () => Promise.reject(new Error("busy")) });
  const result = await runCase(
    caseOf(() => Promise.resolve()),
    subjectOf(backend),
  );
  assert.equal(result.outcome, "failed");
  assert.match(result.reason ?? "", /could not be destroyed/);
});

it("a case for what a backend does not have is skipped, with the reason", async () => {
  const run = (): Promise<never> => Promise.reject(new Error("must not run"));
  const open = subjectOf(new MemoryBackend({ isolated: false }));
  const isolation = await runCase(caseOf(run, { needs: ["isolation"] }), open);
  assert.deepEqual(
    [isolation.outcome, isolation.reason],
    ["skipped", "the backend declares that it does not isolate"],
  );
  const pausing = await runCase(caseOf(run, { needs: ["pausing"] }), open);
  assert.deepEqual([pausing.outcome, pausing.reason], ["skipped", "its sandboxes have no pausing"]);
});

it("a need says what is missing", async () => {
  const run = (): Promise<never> => Promise.reject(new Error("must not run"));
  const noTerminals = new MemoryBackend();
  const provision = noTerminals.provision.bind(noTerminals);
  noTerminals.provision = async (spec, signal) =>
    Object.assign(await provision(spec, signal), {
      spawn: () =>
        Promise.reject(
          new SandboxError({ reason: "test.no_terminals", code: "unimplemented" }, "there are no terminals"),
        ),
    });
  const cases: readonly (readonly [Need, string])[] = [
    ["terminals", "its commands get no terminal: there are no terminals"],
    ["watching", "its files cannot be watched by the backend"],
    ["stateDirectory", "where on this host its files are kept is not said"],
    [{ limit: "diskMiB" }, "the limit diskMiB is not said to be enforced"],
  ];
  for (const [need, reason] of cases) {
    const result = await runCase(caseOf(run, { needs: [need] }), subjectOf(noTerminals));
    assert.deepEqual([result.outcome, result.reason], ["skipped", reason]);
  }
  const withoutPrograms = await runCase(
    caseOf(run, { needs: [{ program: "python3" }] }),
    subjectOf(new MemoryBackend()),
  );
  assert.deepEqual(
    [withoutPrograms.outcome, withoutPrograms.reason],
    ["skipped", "the sandbox has no python3"],
  );
  const met = caseOf(() => Promise.resolve(), {
    needs: ["terminals", "metadata", "accounts", { limit: "processes" }],
  });
  assert.equal((await runCase(met, subjectOf(new MemoryBackend()))).outcome, "passed");
});

it("declared and actual abilities are compared", async () => {
  const each = conformanceCases.find(({ name }) => name === "its abilities are the declared ones");
  assert.ok(each);
  const outcomeWith = async (abilities: readonly Ability[]): Promise<string> =>
    (await runCase(each, subjectOf(new MemoryBackend(), { abilities }))).outcome;
  assert.equal(await outcomeWith(["accounts", "metadata", "terminals"]), "passed");
  assert.equal(await outcomeWith(["accounts", "metadata", "terminals", "watching"]), "failed");
  assert.equal(await outcomeWith(["accounts"]), "failed");
});

it("a declared facet that is absent fails", async () => {
  const each = conformanceCases.find(({ name }) => name === "its facets are the declared ones");
  assert.ok(each);
  const result = await runCase(each, subjectOf(new MemoryBackend(), { facets: ["pausing"] }));
  assert.equal(result.outcome, "failed");
  assert.match(result.reason ?? "", /^pausing: declared, absent/);
  const more = await runCase(each, subjectOf(new MemoryBackend({ snapshots: {} }), { facets: [] }));
  assert.match(more.reason ?? "", /snapshots: present, not declared/);
});

it("a sandbox that never ends fails its case, which ends all the same", async () => {
  const backend = new MemoryBackend({ onDestroy: () => new Promise(() => undefined) });
  const { outcome, reason } = await runCase(
    caseOf(() => Promise.resolve()),
    subjectOf(backend),
    { teardownTimeoutMs: 50 },
  );
  assert.deepEqual([outcome, reason], ["failed", "destroying what the case made: not within 50 ms"]);
});

it("a process that was started for a sandbox and left is found, whether or not its environment tells", async (context) => {
  if (process.platform !== "linux") return context.skip("there is no /proc");
  const left: ChildProcess[] = [];
  context.after(() => left.forEach((child) => child.kill("SIGKILL")));
  const backend = new MemoryBackend({
    onProvision(step) {
      if (step === "start") left.push(spawn("sleep", ["300"], { detached: true, stdio: "ignore" }));
    },
  });
  const { outcome, reason } = await runCase(
    caseOf(() => Promise.resolve()),
    subjectOf(backend),
  );
  assert.equal(outcome, "failed");
  assert.match(reason ?? "", /^left behind: .*process \d+ \(sleep 300\)/);

  // A leftover process whose parent has ended: the check finds it by its mounts, group or arguments.
  const orphaning = new MemoryBackend({
    onProvision(step, { id }) {
      if (step !== "start") return;
      spawnSync("sh", [
        "-c",
        '"$0" -e "setTimeout(() => {}, 300000)" "$1" >/dev/null 2>&1 &',
        process.execPath,
        id,
      ]);
    },
  });
  const orphaned = await runCase(
    caseOf(() => Promise.resolve()),
    subjectOf(orphaning),
  );
  assert.equal(orphaned.outcome, "failed");
  const [, pid] = /process (\d+) /.exec(orphaned.reason ?? "") ?? [];
  assert.ok(pid !== undefined, orphaned.reason);
  process.kill(Number(pid), "SIGKILL");
});

it("a backend without root has no accounts to tell apart, which is no failure", async () => {
  const backend = new MemoryBackend();
  const provision = backend.provision.bind(backend);
  backend.provision = async (spec, signal) => {
    const sandbox = await provision(spec, signal);
    const user = sandbox.user.bind(sandbox);
    return Object.assign(sandbox, {
      user: (name?: string) =>
        name === "root"
          ? Promise.reject(new SandboxError("account_not_found", "unknown user root"))
          : user(name),
    });
  };
  const run = (): Promise<never> => Promise.reject(new Error("must not run"));
  const { outcome, reason } = await runCase(caseOf(run, { needs: ["accounts"] }), subjectOf(backend));
  assert.deepEqual([outcome, reason], ["skipped", "it has no account root"]);
});

it("names of cases are unique", () => {
  const names = conformanceCases.map(({ name }) => name);
  assert.equal(new Set(names).size, names.length);
});

it("a plugin without a backend, or with one that runs nothing, is reported", async () => {
  const none = definePlugin({ name: "none", setup: () => undefined });
  await assert.rejects(runConformance(none, {}), /plugin 'none' adds no backend/);
  await assert.rejects(runConformance(memoryBackend(), {}), /backend 'memory' cannot make a working sandbox/);
});
