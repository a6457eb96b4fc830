import assert from "node:assert/strict";
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const RUNNER = fileURLToPath(new URL("../../scripts/tests/run-files.mjs", import.meta.url));
/** Long enough for files that end, on a busy machine. */
const LIMIT_MS = 8_000;
const GRACE_MS = 1_000;
/** Of a processor. */
const WORK_SECONDS = 0.5;

/** Test files, and what is wrong with each. */
const FIXTURES = {
  "passes.test.mjs": `
    it("passes", () => {});
    it("is left out", { skip: "it is too cold" }, () => {});`,
  "works.test.mjs": `
    import { spawnSync } from "node:child_process";
    const work = "for (let used = 0; used < ${WORK_SECONDS * 1e6};) { const { user, system } = process.cpuUsage(); used = user + system; }";
    it("works", () => { spawnSync(process.execPath, ["-e", work]); });`,
  "fails.test.mjs": `
    describe("a group", () => { it("fails", () => { throw new Error("not today"); }); });`,
  "stays-open.test.mjs": `
    import { createServer } from "node:net";
    it("leaves a server", (t, done) => { createServer().listen(0, "127.0.0.1", done); });`,
  "loops.test.mjs": `
    import { spawn } from "node:child_process";
    import { writeFileSync } from "node:fs";
    it("loops", () => {
      const child = spawn("sleep", ["600"]);
      writeFileSync(new URL("child", import.meta.url), String(child.pid));
      for (;;);
    });`,
  "leaves-output.test.mjs": `
    import { spawn } from "node:child_process";
    import { writeFileSync } from "node:fs";
    it("leaves a process with its output", () => {
      const child = spawn("sleep", ["600"], { stdio: "inherit", detached: true });
      child.unref();
      writeFileSync(new URL("orphan", import.meta.url), String(child.pid));
    });`,
};

interface Results {
  readonly failed: readonly string[];
  readonly failures: readonly { readonly test: string; readonly reason: readonly string[] }[];
  readonly skipped: readonly { readonly file: string; readonly test: string }[];
  readonly seconds: readonly (readonly [file: string, seconds: number, cpuSeconds: number])[];
}

let folder: string;

async function startRunner(task: object): Promise<ChildProcess> {
  await writeFile(join(folder, "task.json"), JSON.stringify(task));
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
  return spawn(process.execPath, [RUNNER, join(folder, "task.json")], {
    stdio: ["ignore", "pipe", "inherit"],
    env,
  });
}

/** False also for a process that has ended and that nobody has waited for. */
function isAlive(pid: number): boolean {
  const { stdout } = spawnSync("ps", ["-o", "stat=", "-p", String(pid)], { encoding: "utf8" });
  return /^[^Z]/.test(stdout.trim());
}

describe("the runner of the tests", () => {
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-runner-"));
    for (const [name, source] of Object.entries(FIXTURES))
      await writeFile(join(folder, name), `import { describe, it } from "node:test";${source}`);
  });

  after(async () => {
    const orphan = await readFile(join(folder, "orphan"), "utf8").catch(() => undefined);
    if (orphan !== undefined) process.kill(Number(orphan), "SIGKILL");
    await rm(folder, { recursive: true });
  });

  it("ends each file that does not end, names it and what it left, and reports the others", async (t) => {
    const files = Object.keys(FIXTURES).map((name) => join(folder, name));
    const runner = await startRunner({
      files,
      filesAtOnce: files.length,
      limitMs: LIMIT_MS,
      graceMs: GRACE_MS,
    });
    t.after(() => runner.kill("SIGKILL"));
    let output = "";
    runner.stdout?.on("data", (data) => (output += String(data)));
    await once(runner, "close");

    const task: unknown = JSON.parse(await readFile(join(folder, "task.json"), "utf8"));
    const { failed, failures, skipped, seconds } = task as Results;
    const names = (paths: readonly string[]): string[] =>
      paths.map((path) => path.slice(folder.length + 1)).sort();
    assert.deepEqual(names(failed), [
      "fails.test.mjs",
      "leaves-output.test.mjs",
      "loops.test.mjs",
      "stays-open.test.mjs",
    ]);
    const [thrown, ...others] = failures.filter(({ test }) => /^(?:fails|a group)$/.test(test));
    assert.deepEqual([thrown?.test, thrown?.reason[0], others], ["fails", "Error: not today", []]);
    assert.deepEqual(skipped, [
      { file: join(folder, "passes.test.mjs"), test: "skipped: is left out (it is too cold)" },
    ]);
    assert.deepEqual(names(seconds.map(([file]) => file)), names(files));
    const cpuOf = (name: string) => seconds.find(([file]) => file === join(folder, name))?.[2] ?? 0;
    assert.ok(cpuOf("works.test.mjs") >= WORK_SECONDS, "it counts the processor time of children, too");
    assert.match(output, /stays-open\.test\.mjs did not end in 8 s\. Still open:\n {2}Server 127\.0\.0\.1/);
    assert.match(output, /loops\.test\.mjs did not end in 8 s, and its event loop is blocked: it was killed/);
    assert.match(output, /leaves-output\.test\.mjs left a process that holds its output/);
    assert.match(output, /Error: not today/);
    assert.match(output, /^ℹ tests \d+\n(.*\n)*ℹ pass 4$/m);
    const child = Number(await readFile(join(folder, "child"), "utf8"));
    assert.equal(isAlive(child), false, "what the file had started was killed with it");
  });

  it("ends with its files when it is stopped", async (t) => {
    await rm(join(folder, "child"), { force: true });
    const file = join(folder, "loops.test.mjs");
    const runner = await startRunner({ files: [file], filesAtOnce: 1, limitMs: 600_000 });
    t.after(() => runner.kill("SIGKILL"));
    while (!existsSync(join(folder, "child"))) await sleep(20);
    const child = Number(await readFile(join(folder, "child"), "utf8"));
    t.after(() => process.kill(child, "SIGKILL"));
    runner.kill("SIGTERM");
    const [code] = await once(runner, "close");
    assert.equal(code, 1);
  });
});
