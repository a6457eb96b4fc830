// An exception is an answer, not a failure of the call; the sandbox goes on.
import { Sandbox, TimeoutError } from "@e2b/code-interpreter";

const sandbox = await Sandbox.create();
try {
  const { error } = await sandbox.runCode("prices = {'tea': 3}\nprices['coffee']");
  console.log(`${error.name}: ${error.value}`);
  console.log("in the traceback:", error.traceback.includes("prices['coffee']"));

  try {
    await sandbox.runCode("while True: pass", { timeoutMs: 1_000 });
  } catch (error) {
    if (!(error instanceof TimeoutError)) throw error;
    console.log("timed out");
  }

  console.log("after both:", (await sandbox.runCode("prices['tea']")).text);
} finally {
  await sandbox.kill();
}
