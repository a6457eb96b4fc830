import assert from "node:assert/strict";
import { readdir, readFile } from "node:fs/promises";
import { after, before, it } from "node:test";
import { WarmUps } from "@coppice/core";
import { eventually } from "@coppice/core/testing";
import { startCodeServer, type CodeServer } from "../testing/code-server.js";

let own: CodeServer;
/** Id of the latest warm sandbox; known from the second one on. */
let lastWarm = "";

before(async () => {
  own = await startCodeServer(
    { zygote: { enabled: true, imports: [] }, templates: { base: { kernel: "eager" } } },
    { sandboxes: { templates: { base: { pool: { min: 1 } } } } },
  );
  own.server.resolve(WarmUps).add({
    prepare: async ({ record }) => void (lastWarm = record.id),
    handOut: async () => {},
  });
});

after(() => own[Symbol.asyncDispose]());

async function metric(name: string): Promise<number> {
  const page = await (await fetch(`${own.server.urls["ops"]}/metrics`)).text();
  const line = page.split("\n").find((candidate) => candidate.startsWith(`coppice_${name} `));
  return Number(line?.split(" ").at(-1) ?? 0);
}

const poolIsFull = (): Promise<true> =>
  eventually("a sandbox is warm", async () => (await metric('sandboxes_warm{template="base"}')) === 1);
const hits = (): Promise<number> => metric('sandboxes_warm_takes_total{template="base",outcome="hit"}');
const startedKernels = async (): Promise<number> =>
  (await metric('jupyter_kernel_start_seconds_count{how="cold"}')) +
  (await metric('jupyter_kernel_start_seconds_count{how="forked"}'));

it("a sandbox of a warm pool has a kernel that runs, in the environment that its creator asked for", async () => {
  await poolIsFull();
  assert.deepEqual(own.server.sandboxes.list(), []);
  const before = await startedKernels();
  const sandbox = await own.create({ GIVEN: 'it\'s "given"', PATH: "/bin:/usr/bin" });
  assert.equal(await hits(), 1);
  const code =
    "import os, subprocess\nprint(os.environ['GIVEN'], os.environ['PATH'], os.environ['E2B_SANDBOX_ID'])";
  const { lines, ...first } = await sandbox.run(`${code}\nsubprocess.run('echo $GIVEN', shell=True)\n1`);
  assert.match(first.text("stdout"), new RegExp(`it's "given" /bin:/usr/bin ${sandbox.live.record.id}\n`));
  assert.match(first.text("stdout"), /^it's "given"$/m);
  assert.equal(lines[0]?.["execution_count"], 1, "nothing counted before the first cell");
  assert.equal((await sandbox.run("_ih, [name for name in dir() if 'rehears' in name]")).error, undefined);
  await poolIsFull();
  assert.equal(await startedKernels(), before + 1, "the pool's next, and no other");
  const { id } = (await (await sandbox.fetch("/contexts", { method: "POST", body: "{}" })).json()) as {
    readonly id: string;
  };
  const forked = await sandbox.run("import os\nprint(os.environ['GIVEN'])", { context_id: id });
  assert.equal(forked.text("stdout"), 'it\'s "given"\n');
  await own.server.sandboxes.kill(sandbox.live.record.id);
});

it("a variable that Python reads only at its start replaces the waiting kernel, and is set", async () => {
  await poolIsFull();
  const before = await hits();
  const sandbox = await own.create({ PYTHONHASHSEED: "0", TZ: "Asia/Kathmandu" });
  assert.equal(await hits(), before + 1);
  const { results } = await sandbox.run(
    "import time, sys\n(hash('a'), time.tzname[0], sys.flags.hash_randomization)",
  );
  assert.match(String(results[0]?.["text"]), /\+0545', 0\)$/);
  const again = await sandbox.fetch("/contexts", { method: "POST", body: "{}" });
  assert.equal(again.status, 200);
  assert.equal(await metric('jupyter_restarts_total{cause="died"}'), 0);
});

it("a kernel that died while it waited is replaced", async () => {
  await poolIsFull();
  const kernels = await metric("jupyter_kernels");
  for (const pid of await pidsOf(lastWarm)) killed(pid);
  await eventually("the server knows", async () => (await metric("jupyter_kernels")) < kernels);
  const sandbox = await own.create();
  assert.equal(sandbox.live.record.id, lastWarm);
  assert.equal((await sandbox.run("1+1")).results[0]?.["text"], "2");
});

it("a stop leaves nothing of unused ones", async () => {
  await poolIsFull();
  const pids = await pidsOf(lastWarm);
  assert.ok(pids.length >= 3, "a zygote, a kernel, and what stands for it");
  await own.server.stop();
  await eventually("its processes are gone", async () => (await pidsOf(lastWarm)).length === 0);
});

/** The end of another process may have ended it already. */
function killed(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    assert.equal((error as NodeJS.ErrnoException).code, "ESRCH");
  }
}

/** The processes on this machine that were started in a sandbox. */
async function pidsOf(id: string): Promise<readonly number[]> {
  const pids = (await readdir("/proc")).map(Number).filter((pid) => pid > 0);
  const isOfSandbox = async (pid: number): Promise<boolean> => {
    const environment = await readFile(`/proc/${pid}/environ`, "utf8").catch(() => "");
    return environment.includes(`E2B_SANDBOX_ID=${id}`);
  };
  const checked = await Promise.all(pids.map(isOfSandbox));
  return pids.filter((_, index) => checked[index]);
}
