import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, stat } from "node:fs/promises";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { Sandbox } from "e2b";
import { makeDevelopmentInstallation } from "../../harness/server/development-installation.js";
import { exchange } from "../../harness/clients/exchange.js";
import { COPPICE, ServerProcess } from "../../harness/server/server-process.js";

const PUBLISHED = `e2b_${"0".repeat(40)}`;

describe("a server of config/development.yaml", { timeout: 240_000 }, () => {
  let installation: Awaited<ReturnType<typeof makeDevelopmentInstallation>>;
  let server: ServerProcess;

  const start = (environment: NodeJS.ProcessEnv = {}) =>
    ServerProcess.start(installation.configFile, { COPPICE_API_KEY: undefined, ...environment });
  const statusWith = async (key: string): Promise<number> =>
    (await exchange(server.url, { path: "/sandboxes", headers: { "x-api-key": key } })).status;

  before(async () => {
    installation = await makeDevelopmentInstallation();
    server = await start();
  });
  after(async () => {
    await server.stop();
    await installation.remove();
  });

  it("lets in with a key of its own making, which it prints nowhere", async () => {
    const key = (await readFile(installation.keyFile, "utf8")).trim();
    assert.match(key, /^e2b_[0-9a-f]{40}$/);
    assert.equal((await stat(installation.keyFile)).mode & 0o777, 0o600);
    assert.equal(await statusWith(key), 200);
    assert.equal(await statusWith(PUBLISHED), 401);
    assert.ok(!server.printed.join("\n").includes(key.slice(0, 12)));
  });

  it("prints what a shell needs for the SDKs, after its heading", async () => {
    await eventually("the heading", () => server.printed.includes("Point an E2B SDK at it:"));
    const exports = server.printed.slice(server.printed.indexOf("Point an E2B SDK at it:") + 1);
    const script = `${exports.filter((line) => line.startsWith("  export ")).join("\n")}\nenv`;
    const set = execFileSync("sh", ["-c", script], { encoding: "utf8" });
    const key = (await readFile(installation.keyFile, "utf8")).trim();
    for (const line of [`E2B_API_URL=${server.url}`, `E2B_SANDBOX_URL=${server.url}`, `E2B_API_KEY=${key}`]) {
      assert.ok(set.split("\n").includes(line), line.slice(0, 12));
    }
  });

  it("gives getHost() of the SDK a name at which a port of the sandbox answers", async () => {
    const apiKey = (await readFile(installation.keyFile, "utf8")).trim();
    const sandbox = await Sandbox.create({ apiUrl: server.url, sandboxUrl: server.url, apiKey });
    try {
      // local-process has the host's ports: one that was free a moment ago.
      const program = `require("http").createServer((_, answer) => answer.end("served")).listen(0, "127.0.0.1", function () { console.log(this.address().port) })`;
      let printed = "";
      const command = await sandbox.commands.run(`${process.execPath} -e '${program}'`, {
        background: true,
        onStdout: (text) => void (printed += text),
      });
      await eventually("the port", () => printed.endsWith("\n"));
      const host = sandbox.getHost(Number(printed));
      const { port } = new URL(server.url);
      assert.equal(host, `${printed.trim()}-${sandbox.sandboxId}.localhost:${port}`);
      // Not every resolver knows names below localhost; browsers and curl do.
      const answer = await exchange(server.url, { path: "/", headers: { host } });
      assert.deepEqual([answer.status, answer.text], [200, "served"]);
      await command.kill();
    } finally {
      await sandbox.kill();
    }
  });

  it("ends when npm was told to, whose shell passes no signal on", async () => {
    await server.stop();
    const command = `"${process.execPath}" "${COPPICE}" start "${installation.configFile}"; :`;
    const shell = spawn("sh", ["-c", command], {
      env: { ...process.env, npm_command: "exec" },
      stdio: ["ignore", "ignore", "pipe"],
    });
    let printed = "";
    shell.stderr.on("data", (text: Buffer) => void (printed += text.toString()));
    await eventually("the server", () => printed.includes("E2B_API_URL="));
    shell.kill("SIGTERM");
    // `close` also waits for the server to end: the server inherited the stderr pipe.
    await once(shell, "close");
    server = await start();
  });

  it("keeps its key over a restart, and takes one of the environment in its place without printing it", async () => {
    const key = (await readFile(installation.keyFile, "utf8")).trim();
    await server.stop();
    server = await start();
    assert.equal(await statusWith(key), 200);
    await server.stop();
    const own = `e2b_${"0f1e2d3c4b".repeat(4)}`;
    server = await start({ COPPICE_API_KEY: own });
    assert.deepEqual([await statusWith(own), await statusWith(key)], [200, 401]);
    assert.ok(!server.printed.join("\n").includes(own.slice(0, 12)));
  });
});
