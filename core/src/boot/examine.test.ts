import assert from "node:assert/strict";
import { once } from "node:events";
import { chmod, mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, it } from "node:test";
import { configFromValues } from "../config/read.js";
import { definePlugin, type Plugin } from "../plugin/plugin.js";
import { memoryBackend } from "../testing/memory-backend.js";
import { startTestServer } from "../testing/start-test-server.js";
import { examine } from "./examine.js";
import { formatFinding } from "../observe/finding.js";

const NODE = `ok    node: Node ${process.versions.node}`;

/** Of the configurations below, wherever the tests run. */
const NETWORK = [
  "ok    authorities: those of Node alone are trusted (outgoing.authorities)",
  "ok    proxies: none is used (outgoing.proxy)",
];

let directory: string;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-doctor-"));
});

afterEach(async () => {
  await rm(directory, { recursive: true });
});

/** Findings of `coppice doctor`, one formatted line each. */
async function linesOf(plugins: readonly Plugin[], server: object = {}): Promise<string[]> {
  const values = {
    listeners: { api: { host: "127.0.0.1", port: 0 } },
    dataDir: join(directory, "data"),
    domain: "sandboxes.example.com",
    outgoing: { authorities: "node", proxy: "none" },
    ...server,
    plugins: Object.fromEntries(plugins.map(({ name }) => [name, {}])),
  };
  const findings = await examine({
    config: configFromValues(values, "test.yaml"),
    plugins: new Map(plugins.map((plugin) => [plugin.name, plugin])),
  });
  return findings.map(formatFinding);
}

it("a host that lacks nothing gets a line for each check, and nothing is left on it", async () => {
  const lines = await linesOf([memoryBackend({ name: "jails" })]);
  assert.deepEqual(lines, [
    NODE,
    `ok    dataDir: ${join(directory, "data")} can be made`,
    "ok    listener api: any port of 127.0.0.1",
    ...NETWORK,
    "ok    configuration: 1 plugins fit together",
    "ok    backend jails: this host can run it",
  ]);
  assert.deepEqual(await readdir(directory), []);
});

it("everything that a host lacks is reported at once", async () => {
  const taken = createServer().listen(0, "127.0.0.1");
  await once(taken, "listening");
  const { port } = taken.address() as AddressInfo;
  await writeFile(join(directory, "file"), "");
  const reasons = "there is no ZFS pool\nthere is no address left";
  const jails = memoryBackend({ name: "jails", onCheck: () => Promise.reject(new Error(reasons)) });
  const kernels = definePlugin({
    name: "kernels",
    setup(plugin) {
      plugin.diagnose("python", async () => [
        { severity: "warn", message: "it is old", fix: "install a newer one" },
        { severity: "fail", message: "it has no ipykernel" },
      ]);
      plugin.diagnose("pool", () => Promise.reject(new Error("it is offline")));
    },
  });
  try {
    const listeners = {
      api: { host: "127.0.0.1", port },
      ops: { host: "192.0.2.1", port: 0 },
    };
    const dataDir = join(directory, "file", "data");
    const lines = await linesOf([jails, kernels], { listeners, dataDir });
    assert.equal(lines[0], NODE);
    assert.match(lines[1] ?? "", /^FAIL {2}dataDir: .*file.* cannot be written: .+ -> make it writable/);
    assert.match(
      lines[2] ?? "",
      /^FAIL {2}listener api: .* cannot be had: .*EADDRINUSE.* -> stop what listens there/,
    );
    assert.match(lines[3] ?? "", /^FAIL {2}listener ops: .*EADDRNOTAVAIL.* -> set listeners\.ops\.host/);
    assert.deepEqual(lines.slice(4), [
      ...NETWORK,
      "FAIL  configuration: test.yaml listeners.ops: listener 'ops' is on 192.0.2.1, which others can reach, and surface 'ops' has no authentication: bind it to 127.0.0.1, configure authentication (plugins access and envd-compat), or say listeners.ops.insecure: true",
      "FAIL  backend jails: there is no ZFS pool; there is no address left",
      "warn  python: it is old -> install a newer one",
      "FAIL  python: it has no ipykernel",
      "FAIL  pool: it is offline",
    ]);
  } finally {
    taken.close();
  }
});

it("two listeners at one address are found out", async () => {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, "close");
  const listener = { host: "127.0.0.1", port };
  const lines = await linesOf([memoryBackend()], { listeners: { api: listener, ops: listener } });
  const message = "listeners 'api' and 'ops' have the same port";
  assert.deepEqual(lines, [NODE, `FAIL  configuration: test.yaml listeners.ops.port: ${message}`]);
});

it("an unusable default that another one replaces is no failure, a chosen one is", async () => {
  const plugins = [
    memoryBackend({ name: "jails", onCheck: () => Promise.reject(new Error("no ZFS pool")) }),
    memoryBackend({ name: "processes" }),
  ];
  const inTurn = await linesOf(plugins, { sandboxes: { defaultBackend: ["jails", "processes"] } });
  assert.deepEqual(inTurn.slice(6), [
    "warn  backend jails: no ZFS pool; the next one of sandboxes.defaultBackend is used",
    "ok    backend processes: this host can run it",
  ]);
  const chosen = await linesOf(plugins, { sandboxes: { defaultBackend: "jials" } });
  assert.deepEqual(chosen.slice(6), [
    "FAIL  backend jails: no ZFS pool",
    "ok    backend processes: this host can run it",
    "FAIL  sandboxes: sandboxes.defaultBackend: there is no backend 'jials'; enabled are jails, processes",
  ]);
});

it("a data directory that a server uses, or that is damaged, is a failure and stays as it is", async () => {
  const dataDir = join(directory, "data");
  await mkdir(dataDir);
  const server = await startTestServer({ plugins: [[memoryBackend()]], dataDir });
  const inUse = await linesOf([memoryBackend()]);
  assert.equal(
    inUse[1],
    `FAIL  dataDir: the ledger ${join(dataDir, "ledger.sqlite")} is in use: another server runs on this data directory, stop it first`,
  );
  await server.sandboxes.create({ template: "base", timeoutMs: undefined, secure: false });
  await server.stop();
  const free = await linesOf([memoryBackend()]);
  assert.equal(free[1], `ok    dataDir: ${dataDir} can be written, and no server uses it`);
  assert.deepEqual(await readdir(dataDir), ["ledger.sqlite", "server.lock"]);
  await writeFile(join(dataDir, "ledger.sqlite"), "no database at all, but long enough to be looked at");
  const damaged = await linesOf([memoryBackend()]);
  assert.match(damaged[1] ?? "", /^FAIL {2}dataDir: cannot use the ledger .*: file is not a database/);
});

it(
  "a data directory of somebody else is a failure",
  { skip: process.getuid?.() === 0 && "root may write everywhere" },
  async () => {
    await chmod(directory, 0o500);
    const lines = await linesOf([memoryBackend()]);
    await chmod(directory, 0o700);
    assert.match(lines[1] ?? "", /^FAIL {2}dataDir: .* cannot be written: EACCES/);
  },
);

it("plugins are set up, asked and undone, and never started", async () => {
  const calls: string[] = [];
  const watched = definePlugin({
    name: "watched",
    setup(plugin) {
      calls.push("setup");
      plugin.onStart(() => calls.push("start"));
      plugin.onStop(() => calls.push("stop"));
      plugin.diagnose("watched", async ({ plugins, signal }) => {
        calls.push(`diagnose, ${[...plugins].toSorted().join(" and ")}, ${signal.aborted}`);
        return [];
      });
    },
  });
  await linesOf([memoryBackend(), watched]);
  assert.deepEqual(calls, ["setup", "diagnose, memory and watched, false", "stop"]);
});

it("a failing set-up of plugins does not hide the other findings", async () => {
  const broken = definePlugin({
    name: "broken",
    setup() {
      throw new Error("it needs a moon");
    },
  });
  assert.deepEqual((await linesOf([memoryBackend(), broken])).slice(2), [
    "ok    listener api: any port of 127.0.0.1",
    ...NETWORK,
    "FAIL  configuration: test.yaml plugins.broken: plugin 'broken' could not be set up: it needs a moon",
  ]);
  assert.deepEqual(await linesOf([memoryBackend()], { listener: {}, dataDirectory: "x" }), [
    NODE,
    "FAIL  configuration: test.yaml listener: unknown key 'listener'; did you mean 'listeners'?",
    "FAIL  configuration: test.yaml dataDirectory: unknown key 'dataDirectory'",
  ]);
});
