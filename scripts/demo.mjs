// A server on free ports, the quickstart of examples/ against it, and nothing left afterwards. Runs
// under the Node that set-up chose, with the packages there: `npm run demo`.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { parseDocument } from "yaml";
import { ROOT } from "./toolchain/project.mjs";

const START_TIMEOUT_MS = 30_000;
const STOP_TIMEOUT_MS = 15_000;

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Writes the development configuration with other ports and a separate folder. */
async function writeConfig(folder) {
  const document = parseDocument(await readFile(join(ROOT, "config", "development.yaml"), "utf8"));
  const urls = {};
  for (const name of ["api", "envd", "code", "ops"]) {
    const port = await freePort();
    document.setIn(["listeners", name, "port"], port);
    urls[name] = `http://127.0.0.1:${port}`;
  }
  document.setIn(["dataDir"], join(folder, "data"));
  document.setIn(["plugins", "linux-namespaces", "directory"], join(folder, "sandboxes"));
  // The demo is over before they would be built.
  document.deleteIn(["plugins", "templates", "recipes"]);
  const file = join(folder, "demo.yaml");
  await writeFile(file, document.toString());
  const keyFile = join(folder, "data", "access", "development-key");
  return { file, urls, keyFile };
}

async function untilReady(server, url, signal) {
  const deadlineMs = Date.now() + START_TIMEOUT_MS;
  while (Date.now() < deadlineMs) {
    if (server.exitCode !== null) throw new Error("the server ended before it was ready; its log is above");
    const answer = await fetch(`${url}/readyz`).catch(() => undefined);
    if (answer?.ok) return;
    await delay(100, undefined, { signal });
  }
  throw new Error(`the server was not ready after ${START_TIMEOUT_MS / 1000} s`);
}

async function stop(server) {
  if (server.exitCode !== null || server.signalCode !== null) return;
  server.kill("SIGTERM");
  const ended = once(server, "exit");
  if ((await Promise.race([ended, delay(STOP_TIMEOUT_MS, undefined, { ref: false })])) !== undefined) return;
  server.kill("SIGKILL");
  await ended;
}

async function runQuickstart({ urls, key, signal }) {
  const quickstart = spawn(process.execPath, [join(ROOT, "examples", "quickstart.mjs")], {
    stdio: ["ignore", "inherit", "inherit"],
    signal,
    env: {
      ...process.env,
      E2B_API_URL: urls.api,
      E2B_SANDBOX_URL: urls.api,
      E2B_API_KEY: key,
    },
  });
  const [code] = await once(quickstart, "exit");
  return code ?? 1;
}

const folder = await mkdtemp(join(tmpdir(), "coppice-demo-"));
let server;
const interruption = new AbortController();
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.once(signal, () => interruption.abort());
try {
  const { file, urls, keyFile } = await writeConfig(folder);
  const program = join(ROOT, "core", "bin", "coppice.mjs");
  // Shows errors alone: the demo is about the client's view.
  server = spawn(process.execPath, [program, "start", file], { stdio: ["ignore", "ignore", "pipe"] });
  let messages = "";
  server.stderr.setEncoding("utf8").on("data", (text) => (messages += text));
  try {
    await untilReady(server, urls.ops, interruption.signal);
    console.log(`Coppice serves ${urls.api}; examples/quickstart.mjs against it:\n`);
    const key = process.env.COPPICE_API_KEY ?? (await readFile(keyFile, "utf8")).trim();
    process.exitCode = await runQuickstart({ urls, key, signal: interruption.signal });
  } catch (error) {
    if (!interruption.signal.aborted) console.error(`${messages}coppice: ${error.message}`);
    process.exitCode = 1;
  }
} finally {
  if (server !== undefined) await stop(server);
  await rm(folder, { recursive: true, force: true });
}
console.log(process.exitCode === 0 ? "\nThe demo is done, the server has stopped." : "\nThe demo failed.");
