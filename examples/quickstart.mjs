// The official, unmodified E2B SDK against a Coppice server:
//
//   E2B_API_URL=http://127.0.0.1:3000 E2B_SANDBOX_URL=http://127.0.0.1:3000 E2B_API_KEY=… node examples/quickstart.mjs
//
// The environment is all that differs from a program that talks to E2B's own service.
import { Sandbox } from "@e2b/code-interpreter";

const sandbox = await Sandbox.create({ timeoutMs: 60_000, metadata: { purpose: "quickstart" } });
console.log(`created    ${sandbox.sandboxId}`);

try {
  const command = await sandbox.commands.run("echo hello from $(uname -s); echo careful >&2", {
    envs: { GREETING: "hi" },
  });
  console.log(`command    exit ${command.exitCode}, stdout ${JSON.stringify(command.stdout)}`);
  console.log(`           stderr ${JSON.stringify(command.stderr)}`);

  await sandbox.files.write("notes/plan.txt", "coppice: cut, and it grows back\n");
  console.log(`file       ${JSON.stringify(await sandbox.files.read("notes/plan.txt"))}`);
  const entries = await sandbox.files.list("notes");
  console.log(`directory  ${entries.map(({ name, size }) => `${name} (${size} bytes)`).join(", ")}`);

  await sandbox.runCode("import math\nradius = 2");
  const area = await sandbox.runCode("print('the radius is still', radius)\nround(math.pi * radius**2, 3)");
  console.log(`python     stdout ${JSON.stringify(area.logs.stdout.join(""))}, result ${area.text}`);
  const mistake = await sandbox.runCode("1 / 0");
  console.log(`           an error arrives as ${mistake.error?.name}: ${mistake.error?.value}`);

  const running = await Sandbox.list({ query: { metadata: { purpose: "quickstart" } } }).nextItems();
  console.log(`listed     ${running.length} sandbox with this purpose`);
} finally {
  console.log(`killed     ${await sandbox.kill()}`);
}
