import assert from "node:assert/strict";
import { it } from "node:test";
import { type Execution, Sandbox } from "@e2b/code-interpreter";
import { endOf, TIMED_OUT } from "../harness/end-of-call.js";
import { type BackendScene, onEachBackend } from "../harness/on-each-backend.js";

/** `COPPICE_CHAOS_ROUNDS=500` asks for more. */
const ROUNDS = Number(process.env["COPPICE_CHAOS_ROUNDS"] ?? 60);
const SLOWEST_MS = 20_000;

onEachBackend("kernels after time-outs and deaths", suite, { timeoutMs: 60_000 + 1000 * ROUNDS });

function suite({ sandbox }: BackendScene): void {
  it("directory and variables are as at the start after a death and after a restart", async () => {
    const own = await Sandbox.create({ envs: { GLOBAL: "g'lobal\"" } });
    const context = await own.createCodeContext({ cwd: "/tmp" });
    const run = (code: string): Promise<Execution> => own.runCode(code, { context, timeoutMs: SLOWEST_MS });
    const stray = "import os; os.chdir('/'); os.environ.pop('GLOBAL'); stray = True";
    const look = "import os; (os.path.basename(os.getcwd()), os.environ.get('GLOBAL'), 'stray' in globals())";
    await run(stray);
    await run("os._exit(3)");
    assert.equal((await run(look)).text, `('tmp', 'g\\'lobal"', False)`);
    await run(stray);
    await own.restartCodeContext(context);
    assert.equal((await run(look)).text, `('tmp', 'g\\'lobal"', False)`);
    await own.kill();
  });

  it(`${ROUNDS} times, a call right after one that timed out at any moment answers`, async () => {
    await sandbox().runCode("kept = 42");
    for (let round = 0; round < ROUNDS; round++) {
      const timeoutMs = 1 + ((round * 7) % 61);
      const code = round % 2 === 0 ? "while True: pass" : "import time; time.sleep(60)";
      assert.equal(await endOf(sandbox().runCode(code, { timeoutMs })), TIMED_OUT, `round ${round}`);
      const { text, error } = await sandbox().runCode("kept", { timeoutMs: SLOWEST_MS });
      assert.equal(text, "42", `round ${round}: ${error?.name}: ${error?.value}`);
    }
  });
}
