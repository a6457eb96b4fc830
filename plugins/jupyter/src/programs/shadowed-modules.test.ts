import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { startCodeServer, type CodeSandbox } from "../testing/code-server.js";

const NAMES = [
  "json",
  "random",
  "typing",
  "asyncio",
  "importlib",
  "ipykernel",
  "traitlets",
  "zmq",
  "IPython",
];

// A package too, for which Python looks first.
const WRITE_THEM = `
import os
os.makedirs("project/socket", exist_ok=True)
for folder in (".", "project"):
    for name in ${JSON.stringify(NAMES)}:
        with open(f"{folder}/{name}.py", "w") as file:
            file.write("raise SystemExit('the user\\'s ' + __name__)\\n")
    with open(f"{folder}/mine.py", "w") as file:
        file.write("value = 42\\n")
with open("project/socket/__init__.py", "w") as file:
    file.write("raise SystemExit('the user\\'s socket')\\n")
`;

// The search path of Jupyter's own kernels: the user's folder stands after the standard library.
const LOOK = "import json, random, mine\n[json.dumps(1), random.random() < 1, mine.value]";

async function newContext(sandbox: CodeSandbox, body: object): Promise<string> {
  const response = await sandbox.fetch("/contexts", { method: "POST", body: JSON.stringify(body) });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  return (JSON.parse(text) as { readonly id: string }).id;
}

describe("files of a user that are named like libraries", { timeout: 240_000 }, () => {
  for (const isForked of [false, true]) {
    it(`break no kernel that is ${isForked ? "forked" : "started"}`, async () => {
      await using own = await startCodeServer({ zygote: { enabled: isForked, imports: ["ctypes"] } });
      const sandbox = await own.create();
      assert.equal((await sandbox.run(WRITE_THEM)).error, undefined);
      const metrics = async (): Promise<string> =>
        await (await fetch(`${own.server.urls["ops"]}/metrics`)).text();
      const untilMs = performance.now() + 20_000;
      const zygotes = new RegExp(`^coppice_jupyter_zygotes ${isForked ? 1 : 0}$`, "m");
      while (!zygotes.test(await metrics())) {
        assert.ok(performance.now() < untilMs, "a zygote is there within 20 s");
        await delay(50);
      }
      for (const cwd of [undefined, "/home/user/project"]) {
        const context_id = await newContext(sandbox, { cwd });
        const looked = await sandbox.run(LOOK, { context_id });
        assert.deepEqual(looked.results[0]?.["json"], ["1", true, 42], looked.body);
        const bash = await newContext(sandbox, { cwd, language: "bash" });
        assert.equal((await sandbox.run("echo $((6 * 7))", { context_id: bash })).text("stdout"), "42\n");
      }
      const forked = Number(
        /^coppice_jupyter_kernel_start_seconds_count\{how="forked"\} (\d+)$/m.exec(await metrics())?.[1] ?? 0,
      );
      assert.equal(forked, isForked ? 4 : 0);
    });
  }
});
