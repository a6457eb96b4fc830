import assert from "node:assert/strict";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { eventually } from "@coppice/core/testing";
import {
  FREEBSD_SOURCES,
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { API_KEY } from "../../harness/server/api-key.js";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const PORT = 3_000;
const START_TIMEOUT_MS = 30_000;
/** Longer than a stop of the server takes, and shorter than the command in its sandbox. */
const SERVICE_TIMEOUT_MS = 40_000;
/** Sends one request from the host, whose loopback interface is its own. */
const REQUEST = `
const [key, method, path, body] = process.argv.slice(1);
const headers = { "X-API-Key": key, "Content-Type": "application/json" };
const answer = await fetch("http://127.0.0.1:${PORT}" + path, { method, headers, body });
const text = await answer.text();
console.log(text);
if (!answer.ok) throw new Error(answer.status + " " + text);
`;

describe("the service of a FreeBSD host", { skip: reasonWithoutFreebsdHost() ?? false }, () => {
  let host: FreebsdHost;
  let script: string;

  /** @throws Error when it does not return, or something still holds its output. */
  const service = async (verb: string) => {
    const late = sleep(SERVICE_TIMEOUT_MS, undefined, { ref: false }).then(() => {
      throw new Error(`service coppice ${verb} has not ended`);
    });
    return Promise.race([host.run(script, verb), late]);
  };
  const request = (method: string, path: string, body?: object, key = API_KEY) =>
    host.run(
      process.execPath,
      "--input-type=module",
      "-e",
      REQUEST,
      key,
      method,
      path,
      ...(body === undefined ? [] : [JSON.stringify(body)]),
    );
  const answers = async () =>
    eventually(
      "the server answers",
      () => request("GET", "/sandboxes").catch(() => undefined),
      START_TIMEOUT_MS,
    );
  const serverPid = async () =>
    Number(await host.run("/usr/bin/pgrep", "-f", "^[^ ]*node .*coppice.mjs start"));

  const anotherAnswers = (pid: number) =>
    eventually(
      "another server answers",
      async () => (await serverPid().catch(() => pid)) !== pid && (await answers()) !== undefined,
      START_TIMEOUT_MS,
    );

  /** Makes a sandbox with a command that goes on. */
  const make = async () => {
    const { sandboxID } = JSON.parse(
      await request("POST", "/sandboxes", { templateID: "base", timeout: 600 }),
    );
    await request("POST", `/sandboxes/${sandboxID}/exec`, {
      cmd: "setsid sleep 600 > /dev/null 2>&1 & echo $! > /tmp/pid",
    });
    return String(sandboxID);
  };
  const stillRuns = async (id: string) => {
    const answer = await request("POST", `/sandboxes/${id}/exec`, {
      cmd: "kill -0 $(cat /tmp/pid) && echo runs",
    });
    assert.match(answer, /runs/);
  };

  before(async () => {
    host = await openFreebsdHost();
    const inHost = (name: string) => join(host.directory, name);
    const config = {
      listeners: { api: { host: "127.0.0.1", port: PORT } },
      dataDir: inHost("data"),
      sandboxes: { onShutdown: "keep", templates: { base: {} } },
      plugins: {
        "access": { apiKeys: ["${env:COPPICE_API_KEY}"] },
        "sandbox-api": {},
        "templates": {},
        "envd-compat": {},
        "commands": {},
        "files": {},
        "legacy-shims": {},
        "jail-freebsd": host.configuration,
      },
    };
    await mkdir(inHost("etc"));
    await writeFile(inHost("etc/coppice.yaml"), JSON.stringify(config));
    const listeners = { api: { host: "127.0.0.1", port: PORT + 1 } };
    await writeFile(inHost("etc/second.yaml"), JSON.stringify({ ...config, listeners }));
    await writeFile(inHost("etc/environment"), `COPPICE_API_KEY=${API_KEY}\n`);
    await writeFile(
      inHost("etc/rc.conf"),
      `coppice_enable=YES coppice_dir=${ROOT} coppice_node=${process.execPath}
       coppice_config=${inHost("etc/coppice.yaml")} coppice_env_file=${inHost("etc/environment")}`,
    );
    const text = await readFile(join(ROOT, "config/freebsd/coppice.rc"), "utf8");
    script = inHost("etc/coppice");
    await writeFile(
      script,
      text
        .replaceAll("/usr/sbin/daemon", inHost("bin/daemon"))
        .replaceAll("/var/run/", `${host.directory}/`)
        .replace(". /etc/rc.subr", `RC_CONF=${inHost("etc/rc.conf")}\n. ${FREEBSD_SOURCES}/rc.subr`),
    );
    await chmod(script, 0o755);
  });
  after(() => host[Symbol.asyncDispose]());

  it("is restarted and killed while a sandbox lives, which the next server has", async () => {
    // It returns while the server runs: no process of the server holds the caller's stdout.
    assert.match(await service("start"), /Starting coppice/);
    await answers();
    assert.match(await service("status"), /coppice is running as pid \d+\./);
    await assert.rejects(service("start"), /already running/);
    const id = await make();

    const serving = await serverPid();
    const config = await readFile(join(host.directory, "etc/coppice.yaml"), "utf8");
    const OTHER_KEY = `e2b_${"0".repeat(40)}`;
    await writeFile(
      join(host.directory, "etc/coppice.yaml"),
      config.replace('"${env:COPPICE_API_KEY}"', `$&,"${OTHER_KEY}"`),
    );
    await service("reload");
    await eventually("the new key is accepted", () =>
      request("GET", "/sandboxes", undefined, OTHER_KEY).catch(() => undefined),
    );
    assert.equal(await serverPid(), serving);
    await stillRuns(id);

    const first = await serverPid();
    assert.match(await service("restart"), /Stopping coppice\.[^]*Starting coppice/);
    await anotherAnswers(first);
    await stillRuns(id);

    const killed = await serverPid();
    await host.run("/bin/kill", "-KILL", String(killed));
    await anotherAnswers(killed);
    await stillRuns(id);

    await service("stop");
    await assert.rejects(service("status"), /coppice is not running|ended with 1/);
    await assert.rejects(serverPid());
    assert.ok((await host.leaks()).includes(`jail e2b-${id}`));
    await service("start");
    await answers();
    await stillRuns(id);
    await request("DELETE", `/sandboxes/${id}`);
    await eventually("nothing is left", async () => (await host.leaks()).length === 0);
    await service("stop");
    assert.doesNotMatch(await readFile(join(host.directory, "state", "syslog"), "utf8"), /WARNING/);
  });

  it("is found, stopped and restarted after daemon(8) was killed and left its server, never two at a time", async () => {
    await service("start");
    await answers();
    const id = await make();
    const left = await serverPid();
    const killSupervisor = async () => {
      const supervisor = await host.run("/bin/cat", join(host.directory, "coppice.pid"));
      await host.run("/bin/kill", "-KILL", supervisor);
    };
    await killSupervisor();
    assert.match(await service("status"), new RegExp(`coppice is running as pid ${left}\\.`));
    await assert.rejects(service("start"), new RegExp(`already running\\?  \\(pid=${left}\\)`));
    // It serves on, though what it writes to the log goes nowhere.
    for (let count = 0; count < 3; count++) await stillRuns(id);
    assert.equal(await serverPid(), left);

    // Started without the script: the second server refuses the data directory, and the first serves on.
    const second = host.run(
      "/usr/bin/env",
      `COPPICE_API_KEY=${API_KEY}`,
      process.execPath,
      join(ROOT, "core/bin/coppice.mjs"),
      "start",
      join(host.directory, "etc/second.yaml"),
    );
    await assert.rejects(second, /another server runs on this data directory/);
    await stillRuns(id);

    assert.match(await service("restart"), /Stopping coppice\.[^]*Starting coppice/);
    await anotherAnswers(left);
    await stillRuns(id);
    await killSupervisor();
    assert.match(await service("stop"), /Stopping coppice\./);
    await assert.rejects(serverPid());
    await assert.rejects(service("status"), /ended with 1/);
    await service("start");
    await answers();
    await stillRuns(id);
    await request("DELETE", `/sandboxes/${id}`);
    await eventually("nothing is left", async () => (await host.leaks()).length === 0);
    await service("stop");
  });

  it("checks its configuration", async () => {
    assert.match(await service("check"), /./);
  });
});
