// Runs one line of Python in a new sandbox.
import { Sandbox } from "@e2b/code-interpreter";

const sandbox = await Sandbox.create();
try {
  const execution = await sandbox.runCode("print('hello, world')");
  console.log(execution.logs.stdout.join(""));
} finally {
  await sandbox.kill();
}
