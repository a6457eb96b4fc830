import assert from "node:assert/strict";
import { it } from "node:test";
import { type Execution, Sandbox } from "@e2b/code-interpreter";
import { endOf, TIMED_OUT } from "../../harness/clients/end-of-call.js";
import { type BackendScene, onEachBackend } from "../../harness/server/on-each-backend.js";

/** Moments of time-outs, in milliseconds after the call. */
const MOMENTS = 61;
/** Each moment for both programs, on each backend. `COPPICE_CHAOS_ROUNDS` gives another number. */
const ROUNDS = Number(process.env["COPPICE_CHAOS_ROUNDS"] ?? 2 * MOMENTS);
/** Number of contexts, which take turns: one that has timed out is busy for a while. */
const CONTEXTS = 5;
const SLOWEST_MS = 20_000;

onEachBackend("kernels after time-outs and deaths", suite, { timeoutMs: 240_000 + 1000 * ROUNDS });

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
    const rounds = Array.from({ length: ROUNDS }, (_, round) => round).values();
    const takeTurns = async (): Promise<void> => {
      const context = await sandbox().createCodeContext();
      const run = (code: string, timeoutMs: number) => sandbox().runCode(code, { context, timeoutMs });
      await run("kept = 42", SLOWEST_MS);
      for (const round of rounds) {
        const code = round % 2 === 0 ? "while True: pass" : "import time; time.sleep(60)";
        assert.equal(await endOf(run(code, 1 + ((round * 7) % MOMENTS))), TIMED_OUT, `round ${round}`);
        const { text, error } = await run("kept", SLOWEST_MS);
        assert.equal(text, "42", `round ${round}: ${error?.name}: ${error?.value}`);
      }
    };
    await Promise.all(Array.from({ length: CONTEXTS }, takeTurns));
  });
}
