// Contexts run side by side, each with variables, a language and a directory of its own.
import { Sandbox } from "@e2b/code-interpreter";

const sandbox = await Sandbox.create();
try {
  const context = await sandbox.createCodeContext({ cwd: "/tmp" });
  await sandbox.runCode("name = 'default'");
  await sandbox.runCode("name = 'own'", { context });
  console.log((await sandbox.runCode("name")).text, (await sandbox.runCode("name", { context })).text);

  await sandbox.restartCodeContext(context);
  console.log("after a restart:", (await sandbox.runCode("'name' in globals()", { context })).text);

  const shell = await sandbox.runCode("for n in 1 2 3; do echo -n $n; done", { language: "bash" });
  console.log("bash:", shell.logs.stdout.join(""));

  await sandbox.removeCodeContext(context);
  const ids = (await sandbox.listCodeContexts()).map(({ id }) => id);
  console.log("removed:", !ids.includes(context.id));
} finally {
  await sandbox.kill();
}
