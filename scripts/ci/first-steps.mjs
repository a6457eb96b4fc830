// What a newcomer does, with the commands and the program of README.md: `npm start` from nothing, a first sandbox, the
// address of a port, then a template on `fromBaseImage()`. Prints how long each took, and ends with 1 when one fails.
//
// usage: node scripts/ci/first-steps.mjs      in a checkout, with the ports of config/development.yaml free
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { ROOT, TOOLCHAIN } from "../toolchain/project.mjs";

/** Limit of each step; those that are aimed at are in docs/measurements.md. */
const STEP_MS = 10 * 60 * 1000;
const FOLDER = join(TOOLCHAIN, "first-steps");

const startedMs = Date.now();
const seconds = () => `${((Date.now() - startedMs) / 1000).toFixed(0)} s`;
const tell = (what) => console.log(`first steps: ${what} after ${seconds()}`);

/** Runs `npm start`, and shows what it prints. */
function startServer() {
  const server = spawn("npm", ["start"], { cwd: ROOT, stdio: ["ignore", "pipe", "pipe"], detached: true });
  const waiting = new Set();
  for (const stream of [server.stdout, server.stderr]) {
    createInterface({ input: stream }).on("line", (line) => {
      console.log(`  ${line.slice(0, 300)}`);
      for (const each of waiting) each(line);
    });
  }
  const exited = once(server, "exit").then(([code]) => {
    throw new Error(`npm start ended with ${code}`);
  });
  exited.catch(() => undefined);
  const seen = [];
  waiting.add((line) => seen.push(line));
  const line = async (pattern) => {
    if (seen.some((each) => pattern.test(each))) return;
    let found;
    const { promise: late, cancel } = timeLimit(`no line ${pattern} within ${STEP_MS / 1000} s`);
    const matched = new Promise((resolve) => {
      found = (each) => pattern.test(each) && resolve();
      waiting.add(found);
    });
    try {
      await Promise.race([matched, exited, late]);
    } finally {
      waiting.delete(found);
      cancel();
    }
  };
  const stop = async () => {
    if (server.exitCode !== null) return;
    process.kill(-Number(server.pid), "SIGINT");
    await once(server, "exit");
  };
  return { line, stop };
}

function timeLimit(text) {
  let timer;
  const promise = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(text)), STEP_MS);
  });
  return { promise, cancel: () => clearTimeout(timer) };
}

/** The example of README.md in a language. */
async function example(language) {
  const text = await readFile(join(ROOT, "README.md"), "utf8");
  const found = new RegExp(`\`\`\`${language}\\n([^]*?)\`\`\``).exec(text);
  if (found === null) throw new Error(`README.md has no example in ${language}`);
  return found[1];
}

/** Runs a program under the Node of set-up, with the variables that README.md exports. */
async function runProgram(name, source) {
  const file = join(FOLDER, name);
  await writeFile(file, source);
  const node = join(TOOLCHAIN, "node", "node_modules", "node", "bin", "node");
  const url = "http://127.0.0.1:3000";
  const key = await readFile(join(ROOT, ".coppice", "access", "development-key"), "utf8");
  const variables = { E2B_API_URL: url, E2B_SANDBOX_URL: url, E2B_API_KEY: key.trim() };
  const child = spawn(node, [file], {
    cwd: FOLDER,
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, ...variables },
  });
  let output = "";
  child.stdout.on("data", (data) => (output += data));
  const [code] = await once(child, "close");
  if (code !== 0) throw new Error(`${name} ended with ${code}: ${output}`);
  return output;
}

/** A port of a sandbox by the address that the SDK gives, as a browser would ask for it. */
const PORT = `
import { Sandbox } from "@e2b/code-interpreter";
const sandbox = await Sandbox.create();
await sandbox.commands.run("echo of the sandbox > index.html; python3 -m http.server 8000", { background: true });
for (let attempt = 0; ; attempt++) {
  const answer = await fetch(\`http://\${sandbox.getHost(8000)}/index.html\`);
  const text = await answer.text();
  if (answer.ok) {
    process.stdout.write(text);
    break;
  }
  if (attempt === 50) throw new Error(text);
  await new Promise((resolve) => setTimeout(resolve, 100));
}
await sandbox.kill();
`;

const TEMPLATE = `
import { Sandbox, Template } from "@e2b/code-interpreter";
const template = Template().fromBaseImage().runCmd("node --version && python3 --version && pip --version");
await Template.build(template, "first-steps", { onBuildLogs: ({ message }) => console.log(message) });
const sandbox = await Sandbox.create("first-steps");
const { stdout } = await sandbox.commands.run("cat /etc/debian_version; echo authorities $NODE_EXTRA_CA_CERTS");
console.log(stdout);
await sandbox.kill();
`;

await rm(FOLDER, { recursive: true, force: true });
await mkdir(FOLDER, { recursive: true });
const server = startServer();
try {
  await server.line(/^Coppice serves/);
  tell("it serves");
  const html = await runProgram("hello.mjs", await example("js"));
  if (!html.includes("<td>2</td>")) throw new Error(`hello.mjs printed ${html}`);
  tell("the first sandbox has run code");
  const text = await runProgram("port.mjs", PORT);
  if (text !== "of the sandbox\n") throw new Error(`the port of a sandbox answered ${text}`);
  tell("a port of a sandbox has answered at the address of getHost");
  await server.line(/template 'base' is ready/);
  tell("the template base is ready");
  const built = await runProgram("template.mjs", TEMPLATE);
  console.log(built.replaceAll(/^/gm, "  "));
  if (process.env.HTTPS_PROXY && !/authorities \/etc/.test(built))
    throw new Error("a sandbox of a template does not trust the proxy");
  tell("a template on fromBaseImage() is built and used");
} catch (error) {
  console.error(`first steps: ${error.message}`);
  process.exitCode = 1;
} finally {
  await server.stop();
  await rm(FOLDER, { recursive: true, force: true });
}
