import assert from "node:assert/strict";
import { it } from "node:test";
import type { Sandbox } from "@e2b/code-interpreter";

const PNG_MAGIC = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

const PLOT = `
import io, matplotlib.pyplot as plt
from IPython.display import display, Image
plt.plot([1, 4, 9])
buffer = io.BytesIO()
plt.savefig(buffer, format="png")
plt.close()
display(Image(buffer.getvalue()))`;

/** Cases for `runCode`, for each way in which the SDK reaches the server. They share one kernel and its state. */
export function codeScenarios(sandbox: () => Sandbox): void {
  it("keeps state from one call to the next", async () => {
    const first = await sandbox().runCode("x = 42");
    assert.deepEqual(first.logs.stdout, []);
    assert.deepEqual(first.results, []);
    const second = await sandbox().runCode("print(x)");
    assert.equal(second.logs.stdout.join(""), "42\n");
    assert.equal(second.error, undefined);
    assert.equal(second.executionCount, (first.executionCount ?? 0) + 1);
  });

  it("answers the value of the last expression", async () => {
    const { results, text } = await sandbox().runCode("import numpy as np; np.array([1, 2, 3])");
    assert.equal(text, "array([1, 2, 3])");
    assert.equal(results.length, 1);
    assert.equal(results[0]?.isMainResult, true);
  });

  it("answers a DataFrame as text and as HTML", async () => {
    const { results } = await sandbox().runCode(
      "import pandas as pd\nfrom IPython.display import display\ndisplay(pd.DataFrame({'a': [1, 2], 'b': [3, 4]}))",
    );
    const [frame] = results;
    assert.match(frame?.html ?? "", /<table[^>]*class="dataframe"/);
    assert.match(frame?.text ?? "", /a\s+b\n0\s+1\s+3\n1\s+2\s+4/);
    assert.equal(frame?.isMainResult, false);
  });

  it("answers a plot as a PNG", async () => {
    const { results, error } = await sandbox().runCode(PLOT);
    assert.equal(error, undefined);
    const png = Buffer.from(results.find((result) => result.png !== undefined)?.png ?? "", "base64");
    assert.deepEqual(png.subarray(0, PNG_MAGIC.length), PNG_MAGIC);
    assert.ok(png.length > 1_000, `${png.length} bytes`);
  });

  it("answers a figure that is left open as a PNG", async () => {
    const { results } = await sandbox().runCode(
      "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    );
    const png = Buffer.from(results.find((result) => result.png !== undefined)?.png ?? "", "base64");
    assert.deepEqual(png.subarray(0, PNG_MAGIC.length), PNG_MAGIC);
  });

  it("answers an exception by name, value and traceback, and goes on", async () => {
    const { error } = await sandbox().runCode("undefined_variable");
    assert.equal(error?.name, "NameError");
    assert.equal(error?.value, "name 'undefined_variable' is not defined");
    assert.match(error?.traceback ?? "", /NameError: name 'undefined_variable' is not defined/);
    assert.equal((await sandbox().runCode("x + 1")).text, "43");
  });

  it("streams stdout and stderr while the code runs, whatever the alphabet", async () => {
    const stdout: string[] = [];
    const stderr: string[] = [];
    const execution = await sandbox().runCode(
      "import sys\nprint('žluťoučký 🐎')\nprint('wrong', file=sys.stderr)",
      {
        onStdout: ({ line }) => void stdout.push(line),
        onStderr: ({ line }) => void stderr.push(line),
      },
    );
    assert.equal(stdout.join(""), "žluťoučký 🐎\n");
    assert.equal(stderr.join(""), "wrong\n");
    assert.equal(execution.logs.stdout.join(""), "žluťoučký 🐎\n");
  });

  it("sees the files and the variables that it is given", async () => {
    await sandbox().files.write("data.csv", "n\n1\n2\n");
    const { text } = await sandbox().runCode("import os\n(os.environ['GIVEN'], open('data.csv').read())", {
      envs: { GIVEN: 'it\'s "so"' },
    });
    assert.equal(text, `('it\\'s "so"', 'n\\n1\\n2\\n')`);
    assert.equal((await sandbox().runCode("'GIVEN' in os.environ")).text, "False");
  });

  it("runs contexts side by side, each with its own state", async () => {
    const context = await sandbox().createCodeContext({ language: "python" });
    const inContext = await sandbox().runCode("'x' in globals()", { context });
    assert.equal(inContext.text, "False");
    assert.ok((await sandbox().listCodeContexts()).some(({ id }) => id === context.id));
    await sandbox().runCode("x = 'mine'", { context });
    assert.equal((await sandbox().runCode("x")).text, "42");
    await sandbox().restartCodeContext(context);
    assert.equal((await sandbox().runCode("'x' in globals()", { context })).text, "False");
    await sandbox().removeCodeContext(context);
    assert.ok(!(await sandbox().listCodeContexts()).some(({ id }) => id === context.id));
  });

  it("gives up when the time is up, and the kernel is free for the next call", async () => {
    await assert.rejects(
      sandbox().runCode("import time; time.sleep(60)", { timeoutMs: 1_000 }),
      /Execution timed out/,
    );
    assert.equal((await sandbox().runCode("x", { timeoutMs: 15_000 })).text, "42");
  });
}
