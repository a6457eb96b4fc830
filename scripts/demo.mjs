// A server on free ports with the configuration of `npm start`, the quickstart of examples/ against it, then its template
// `base` and templates on it as root, and nothing left afterwards. Runs under the Node that
// set-up chose, with the packages there: `npm run demo`.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { BlockList, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { parseDocument } from "yaml";
import { ROOT } from "./toolchain/project.mjs";

const START_TIMEOUT_MS = 30_000;
const STOP_TIMEOUT_MS = 15_000;
const BUILD_TIMEOUT_MS = 15 * 60_000;
/** What others need for it is not everywhere, and files of their templates belong to ids whose files they cannot remove. */
const BUILDS = process.getuid?.() === 0;

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Lets builds reach the name servers of a network that has its own, as docs/templates.md says. */
async function reachOwnNetwork(document) {
  const own = new BlockList();
  for (const [range, bits] of [
    ["10.0.0.0", 8],
    ["172.16.0.0", 12],
    ["192.168.0.0", 16],
  ])
    own.addSubnet(range, bits);
  const lines = await readFile("/etc/resolv.conf", "utf8").catch(() => "");
  const servers = [...lines.matchAll(/^nameserver (\S+)$/gm)].map(([, address]) => address);
  if (!servers.some((address) => own.check(address))) return;
  document.setIn(["plugins", "linux-namespaces", "nameservers"], servers);
  document.setIn(["plugins", "linux-namespaces", "egressBlocked"], ["127.0.0.0/8", "169.254.0.0/16"]);
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
  // `npm start` may serve on this host meanwhile.
  document.setIn(["plugins", "linux-namespaces", "egressRange"], "10.219.0.0/16");
  // It takes minutes more, and shows nothing new.
  document.deleteIn(["plugins", "templates", "recipes", "code-interpreter-v1"]);
  if (!BUILDS) document.deleteIn(["plugins", "templates", "recipes", "base"]);
  await reachOwnNetwork(document);
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

/** Follows the log of a server. @returns what is known of its template `base`: `unable`, `ready`, or why it was not built. */
function watchBase(server) {
  const base = { line: "", state: undefined };
  createInterface({ input: server.stdout }).on("line", (line) => {
    if (!line.startsWith("{")) return;
    const { msg = "", plugin, template, templates } = JSON.parse(line);
    if (plugin !== "templates" || !(template === "base" || templates?.includes("base"))) return;
    if (msg.startsWith("the backend cannot build")) base.state = "unable";
    else if (msg.endsWith(" is ready")) base.state = "ready";
    else if (msg.includes(" was not built")) base.state = msg;
    else base.line = msg;
  });
  return base;
}

/** Waits for the server's own template, with a line now and then. @returns false where this host cannot build it */
async function untilBaseIsBuilt(server, base, signal) {
  const deadlineMs = Date.now() + BUILD_TIMEOUT_MS;
  let told = "";
  while (base.state === undefined) {
    if (Date.now() > deadlineMs || server.exitCode !== null) throw new Error("template 'base' was not built");
    if (base.line !== told) console.log(`  ${(told = base.line)}`);
    await delay(2000, undefined, { signal });
  }
  if (base.state !== "ready" && base.state !== "unable") throw new Error(base.state);
  return base.state === "ready";
}

async function runExample(name, { urls, key, signal }) {
  const example = spawn(process.execPath, [join(ROOT, "examples", name)], {
    stdio: ["ignore", "inherit", "inherit"],
    signal,
    env: { ...process.env, E2B_API_URL: urls.api, E2B_SANDBOX_URL: urls.api, E2B_API_KEY: key },
  });
  const [code] = await once(example, "exit");
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
  server = spawn(process.execPath, [program, "start", file], { stdio: ["ignore", "pipe", "pipe"] });
  const base = watchBase(server);
  let messages = "";
  server.stderr.setEncoding("utf8").on("data", (text) => (messages += text));
  try {
    await untilReady(server, urls.ops, interruption.signal);
    console.log(`Coppice serves ${urls.api}; examples/quickstart.mjs against it:\n`);
    const key = process.env.COPPICE_API_KEY ?? (await readFile(keyFile, "utf8")).trim();
    const client = { urls, key, signal: interruption.signal };
    process.exitCode = await runExample("quickstart.mjs", client);
    if (BUILDS) {
      console.log(
        "\nThe server builds its template 'base' meanwhile, and examples/templates.mjs stands on it:\n",
      );
      if (!(await untilBaseIsBuilt(server, base, interruption.signal)))
        console.log("  This host cannot build templates: docs/linux.md says what that takes.");
      else process.exitCode ||= await runExample("templates.mjs", client);
    }
  } catch (error) {
    if (!interruption.signal.aborted) console.error(`${messages}coppice: ${error.message}`);
    process.exitCode = 1;
  }
} finally {
  if (server !== undefined) await stop(server);
  await rm(folder, { recursive: true, force: true });
}
console.log(process.exitCode === 0 ? "\nThe demo is done, the server has stopped." : "\nThe demo failed.");
