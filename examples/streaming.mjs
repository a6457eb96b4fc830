// Output, results and errors are told while the code runs.
import { Sandbox } from "@e2b/code-interpreter";

const CODE = `
import sys, time
from IPython.display import display
for step in range(3):
    print("step", step, flush=True)
    time.sleep(0.1)
print("careful", file=sys.stderr)
display({"text/plain": "half way"}, raw=True)
1 / 0`;

const sandbox = await Sandbox.create();
try {
  await sandbox.runCode(CODE, {
    // Pieces as they come, which need not be lines.
    onStdout: ({ line }) => process.stdout.write(line),
    onStderr: ({ line }) => process.stdout.write(line),
    onResult: ({ text }) => console.log("result:", text),
    onError: ({ name }) => console.log("error: ", name),
  });
} finally {
  await sandbox.kill();
}
