import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import {
  startCodeServer,
  type CodeSandbox,
  type CodeServer,
  type Execution,
} from "../testing/code-server.js";

let own: CodeServer;
let sandbox: CodeSandbox;

before(async () => {
  own = await startCodeServer({ zygote: { enabled: true, imports: ["numpy", "no_such_module"] } });
  sandbox = await own.create({ GLOBAL: "g" });
});

after(() => own[Symbol.asyncDispose]());

async function metric(name: string, labels = ""): Promise<number> {
  const page = await (await fetch(`${own.server.urls["ops"]}/metrics`)).text();
  const line = page
    .split("\n")
    .find((candidate) => candidate.startsWith(`coppice_jupyter_${name}${labels} `));
  return Number(line?.split(" ").at(-1) ?? 0);
}

const forked = (): Promise<number> => metric("kernel_start_seconds_count", '{how="forked"}');
const cold = (): Promise<number> => metric("kernel_start_seconds_count", '{how="cold"}');

async function newContext(cwd?: string): Promise<string> {
  const response = await sandbox.fetch("/contexts", { method: "POST", body: JSON.stringify({ cwd }) });
  assert.equal(response.status, 200);
  return ((await response.json()) as { readonly id: string }).id;
}

const run = (context_id: string, code: string, more = {}): Promise<Execution> =>
  sandbox.run(code, { context_id, ...more });

async function number(context: string, code: string): Promise<number> {
  return Number((await run(context, code)).results[0]?.["text"]);
}

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** Resolves with a ready zygote, which starts together with the first kernel of a sandbox. */
async function zygoteReady(): Promise<void> {
  await eventually("there is a zygote", async () => (await metric("zygotes")) === 1);
}

describe("a kernel that is forked", () => {
  it("is like one that is started, with its own folder, environment, random numbers and end", async () => {
    assert.equal((await sandbox.run("1+1")).results[0]?.["text"], "2");
    assert.equal(await cold(), 1);
    await zygoteReady();
    const [one, two] = [await newContext("/tmp"), await newContext()];
    assert.equal(await forked(), 2);
    const seen = await run(
      one,
      "import os, sys\nprint(os.getcwd())\nprint(os.environ['GLOBAL'], sys.argv, sys.path.count(''))",
    );
    assert.match(seen.text("stdout"), /\/tmp\ng \[''\] 1\n$/);
    const same = "(os.environ.get('MPLBACKEND'), sorted(k for k in os.environ), __name__)";
    assert.equal(
      (await run(two, `import os\n${same}`)).results[0]?.["text"],
      (await sandbox.run(`import os\n${same}`)).results[0]?.["text"],
    );
    for (const draw of ["__import__('random').random()", "__import__('numpy').random.rand()"]) {
      assert.notEqual(await number(one, draw), await number(two, draw), draw);
    }
    assert.equal(await number(one, "int('numpy' in sys.modules)"), 1, "numpy was imported for all");
    await run(one, "x = 1\nos.environ['GLOBAL'] = 'changed'");
    assert.equal((await run(two, "x")).error?.["name"], "NameError");
    assert.equal((await run(two, "os.environ['GLOBAL']")).results[0]?.["text"], "g");
  });

  it("has all features: figures, child processes, env_vars, interrupts, threads, await, an exit", async () => {
    const context = await newContext();
    const figure = await run(context, "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()");
    assert.ok(figure.results[0]?.["png"], figure.body.slice(0, 500));
    assert.equal((figure.results[0]?.["chart"] as { readonly type?: string } | undefined)?.type, "line");
    const child = await run(
      context,
      "import subprocess, sys\n_ = sys.stdout.write(str(subprocess.run(['echo', 'child']).returncode) + '\\n')",
    );
    assert.deepEqual(child.text("stdout").split("\n").toSorted(), ["", "0", "child"]);
    const once = await run(context, "print(__import__('os').environ['ONCE'])", {
      env_vars: { ONCE: "1'\"" },
    });
    assert.equal(once.text("stdout"), "1'\"\n");
    const slept = await run(
      context,
      "import asyncio\nawait asyncio.sleep(0.01)\nimport threading\nthreading.active_count() > 1",
    );
    assert.equal(slept.results[0]?.["text"], "True");
    const client = new AbortController();
    const response = await sandbox.fetch("/execute", {
      method: "POST",
      body: JSON.stringify({ context_id: context, code: "print('on', flush=True)\nwhile True: pass" }),
      signal: client.signal,
    });
    await response.body?.getReader().read();
    client.abort();
    assert.equal((await run(context, "'free'")).results[0]?.["text"], "free");
    await run(context, "exit()");
    await eventually(
      "a new kernel",
      async () => (await run(context, "'again'")).results[0]?.["text"] === "again",
    );
  });

  it("dies alone: its zygote and its siblings go on, and the next kernel is forked", async () => {
    const [dying, other] = [await newContext(), await newContext()];
    const before = await forked();
    await run(other, "x = 42");
    for (const end of ["os._exit(3)", "os.kill(os.getpid(), 9)", "__import__('ctypes').string_at(0)"]) {
      assert.equal((await run(dying, `import os\n${end}`)).error?.["name"], "ContextRestarting", end);
      assert.equal((await run(dying, "'alive'")).results[0]?.["text"], "alive");
    }
    assert.equal(await forked(), before + 3);
    assert.equal(await number(other, "x"), 42);
    assert.equal(await metric("zygotes"), 1);
  });

  it("ends, with its group, when its context is removed", async () => {
    const context = await newContext();
    const pid = await number(context, "import os\nos.getpid()");
    const childPid = await number(context, "import subprocess\nsubprocess.Popen(['sleep', '600']).pid");
    assert.ok(isThere(pid) && isThere(childPid));
    await sandbox.fetch(`/contexts/${context}`, { method: "DELETE" });
    await eventually("the kernel and its child are gone", () => !isThere(pid) && !isThere(childPid));
    const busy = await newContext();
    const [busyPid, busyChild] = [
      await number(busy, "import os\nos.getpid()"),
      await number(busy, "import subprocess\nsubprocess.Popen(['sleep', '600']).pid"),
    ];
    const running = run(busy, "while True: pass");
    await sandbox.fetch(`/contexts/${busy}`, { method: "DELETE" });
    await running;
    await eventually("a busy kernel and its child are gone", () => !isThere(busyPid) && !isThere(busyChild));
  });

  it("is refused without the zygote's secret", async () => {
    const context = await newContext();
    const before = await metric("kernels");
    const code = [
      "import socket, os",
      "name = next(l.split('@')[-1].strip() for l in open('/proc/net/unix') if 'coppice-zygote' in l)",
      "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + name)",
      'message = b\'{"secret": "guess", "environment": {}, "folder": "/", "key": "k", "language": "python", "mostCells": 1}\'',
      "socket.send_fds(s, [b'%d\\n' % len(message)], [0, 1, 2]); s.sendall(message)",
      "s.recv(16)",
    ].join("\n");
    assert.equal((await run(context, code)).results[0]?.["text"], "b'1'");
    assert.equal(await metric("kernels"), before);
  });
});

describe("without a zygote", () => {
  it("kernels start cold: its death ends its forks, and the next kernel is started", async () => {
    const context = await newContext();
    await run(context, "x = 1");
    const [coldBefore, failuresBefore] = [await cold(), await metric("zygote_failures_total")];
    const [pid, zygotePid] = [
      await number(context, "import os\nos.getpid()"),
      await number(context, "os.getppid()"),
    ];
    assert.equal(
      (await run(context, `os.kill(${zygotePid}, 9)\nwhile True: pass`)).error?.["name"],
      "ContextRestarting",
    );
    await eventually("the kernel died with its zygote", () => !isThere(pid));
    assert.equal((await run(context, "'x' in dir()")).results[0]?.["text"], "False");
    assert.equal(await cold(), coldBefore + 1);
    assert.equal(await metric("zygote_failures_total"), failuresBefore);
    await zygoteReady();
    const next = await newContext();
    assert.notEqual(await number(next, "__import__('os').getppid()"), zygotePid);
  });

  it(
    "kernels start by themselves: one that does not answer is not asked again",
    { timeout: 240_000 },
    async () => {
      const context = await newContext();
      const zygotePid = await number(context, "import os\nos.getppid()");
      const failures = await metric("zygote_failures_total");
      process.kill(zygotePid, "SIGSTOP");
      const coldBefore = await cold();
      const next = await newContext();
      assert.equal(await number(next, "1+1"), 2);
      assert.equal(await cold(), coldBefore + 1);
      assert.equal(await metric("zygote_failures_total"), failures + 1);
      assert.equal(await number(context, "2+2"), 4, "what it forked goes on");
    },
  );

  it("a sandbox that ends leaves neither it nor its forks", async () => {
    const other = await own.create();
    await other.run("1");
    await eventually("the second zygote is ready", async () => (await metric("zygotes")) === 2);
    const { id } = (await (await other.fetch("/contexts", { method: "POST", body: "{}" })).json()) as {
      readonly id: string;
    };
    const asked = await other.run("import os\n[os.getpid(), os.getppid()]", { context_id: id });
    const pids = JSON.parse(String(asked.results[0]?.["text"])) as number[];
    assert.equal(pids.length, 2);
    await own.server.sandboxes.kill(other.live.record.id);
    await eventually("nothing of it runs", () => pids.every((pid) => !isThere(pid)));
    await eventually("it is not counted", async () => (await metric("zygotes")) === 1);
  });
});
