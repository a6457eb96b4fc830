// Variables, imports and functions stay from one call to the next.
import { Sandbox } from "@e2b/code-interpreter";

const sandbox = await Sandbox.create();
try {
  await sandbox.runCode("import math\nx = 42");
  await sandbox.runCode("def area(radius): return math.pi * radius**2");
  const execution = await sandbox.runCode("print(x)\nround(area(2), 3)");
  console.log("printed:", execution.logs.stdout.join("").trim());
  console.log("result: ", execution.text);
} finally {
  await sandbox.kill();
}
