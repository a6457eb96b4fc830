// A server that a test can kill: creates sandboxes in the directory of its first argument, starts programs in them,
// reports that, and waits. With `stop` as third argument it begins to stop them before the report.
import type { Logger } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import { LinuxNamespacesBackend } from "../linux-namespaces-backend.js";
import { linuxNamespacesConfig } from "../linux-namespaces-config.js";
import { PYTHON } from "./test-backend.js";
import { makeSandbox, runScript } from "./test-sandbox.js";

const [, , directory = "", count = "1", then] = process.argv;
const log = { info: () => undefined, warn: () => undefined } as unknown as Logger;
const backend = new LinuxNamespacesBackend(linuxNamespacesConfig.parse({ directory, python: PYTHON }), log);
const made: Sandbox[] = [];
while (made.length < Number(count)) {
  const sandbox = await makeSandbox(backend);
  made.push(sandbox);
  await runScript(sandbox, "echo kept > /home/user/kept");
  const script = "echo before; read line; echo after $line; exit 43";
  const { pid } = await sandbox.spawn({
    path: "/bin/sh",
    args: ["-c", script],
    env: { E2B_SANDBOX_ID: sandbox.id },
  });
  process.stdout.write(`${sandbox.id} ${pid}\n`);
}
for (const sandbox of then === "stop" ? made : []) void sandbox.stopping?.stop();
process.stdout.write("ready\n");
setInterval(() => undefined, 60_000);
