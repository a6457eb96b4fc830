// The part of a server that a test can kill: makes sandboxes in the directory of its first argument, starts
// programs in them, says so, and waits for its end.
import type { Logger } from "@coppice/core";
import { LinuxNamespacesBackend } from "../linux-namespaces-backend.js";
import { linuxNamespacesConfig } from "../linux-namespaces-config.js";
import { PYTHON } from "./test-backend.js";
import { makeSandbox } from "./test-sandbox.js";

const [, , directory = "", count = "1"] = process.argv;
const log = { info: () => undefined, warn: () => undefined } as unknown as Logger;
const backend = new LinuxNamespacesBackend(linuxNamespacesConfig.parse({ directory, python: PYTHON }), log);
for (let made = 0; made < Number(count); made++) {
  const sandbox = await makeSandbox(backend);
  const script = "echo before; read line; echo after $line; exit 43";
  const { pid } = await sandbox.spawn({
    path: "/bin/sh",
    args: ["-c", script],
    env: { E2B_SANDBOX_ID: sandbox.id },
  });
  process.stdout.write(`${sandbox.id} ${pid}\n`);
}
process.stdout.write("ready\n");
setInterval(() => undefined, 60_000);
