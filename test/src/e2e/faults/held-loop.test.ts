import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import type { Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { after, before, describe, it, type TestContext } from "node:test";
import { connect as connectTls } from "node:tls";
import { loopbackCertificate } from "@coppice/core/testing";
import { Sandbox } from "@e2b/code-interpreter";
import { pour } from "../../harness/clients/flood.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import {
  type Installation,
  makeInstallation,
  namespacePlugins,
  ServerProcess,
} from "../../harness/server/server-process.js";
import { standInForAgent, started, taken } from "../../harness/server/stand-in-agent.js";
import { LONGEST_STALL, slowness } from "../../harness/server/stall-meter.js";
import { HOSTILE_INPUTS, type World } from "./hostile-inputs.js";
import { HOSTILE_KERNELS } from "./hostile-kernels.js";
import { HOSTILE_MESSAGES } from "./hostile-messages.js";

/** Request of the agents' protocol. */
const SPAWN = 0x03;
/** Longest turn of the event loop on a machine that `slowness` calls 1. */
const MOST_MS = 20;
const EACH_MS = 300;
const MOST_TRIES = 10;
const POLL_MS = 20;
const RECORD_UNITS = 50;
const METER = import.meta.resolve("../../harness/server/stall-meter.js");

describe("the event loop", { timeout: 560_000 }, () => {
  let installation: Installation;
  let world: World;

  before(async () => {
    const rate = { requests: 1_000_000, per: "1s" };
    installation = await makeInstallation({
      plugins: () => ({
        "access": { apiKeys: [API_KEY], rateLimits: { perAddress: rate, perKey: rate } },
        "commands-v1": {},
        "shell-sessions": {},
      }),
    });
    const server = await ServerProcess.start(installation.configFile, { NODE_OPTIONS: `--import=${METER}` });
    pointSdkAt(server.url);
    const sandbox = await Sandbox.create({ timeoutMs: 600_000 });
    const { pid } = await sandbox.commands.run("cat > /dev/null", { background: true, stdin: true });
    const { envdAccessToken: token } = sandbox as unknown as { envdAccessToken: string };
    const { id: kernel } = await sandbox.createCodeContext();
    world = { server, sandbox, token, pid, kernel };
  });
  after(async () => {
    await world.server.stop();
    await installation.remove();
  });

  for (const { name, send } of [...HOSTILE_INPUTS, ...HOSTILE_MESSAGES, ...HOSTILE_KERNELS])
    it(`is not held by ${name}`, async (t) => {
      await isNotHeld(t, world.server, (signal) => send(world, signal));
    });
});

describe("the event loop of a server with replaced agents", { skip: missingForNamespaces() }, () => {
  it("is not held by small frames", { timeout: 60_000 }, async (t) => {
    const installation = await makeInstallation({
      config: { sandboxes: { defaultBackend: "linux-namespaces" } },
      plugins: namespacePlugins,
    });
    const first = await ServerProcess.start(installation.configFile);
    pointSdkAt(first.url);
    const ids = await Promise.all([1, 2, 3].map(async () => (await Sandbox.create()).sandboxId));
    first.signal("SIGKILL");
    await first.ended;
    const over = new AbortController();
    const pouring: Promise<void>[] = [];
    const agents = await Promise.all(
      ids.map((id) =>
        standInForAgent(
          join(installation.directory, "namespaces", "sandboxes", id, "agent.sock"),
          ({ type, id: process, socket }) => {
            if (type !== SPAWN) return;
            socket.write(started(process));
            pouring.push(pour(socket, { unit: taken(process) }, over.signal));
          },
        ),
      ),
    );
    const server = await ServerProcess.start(installation.configFile, { NODE_OPTIONS: `--import=${METER}` });
    t.after(async () => {
      over.abort();
      for (const agent of agents) await agent[Symbol.asyncDispose]();
      await Promise.all(pouring);
      await server.stop();
      await installation.remove();
    });
    const connection = { apiUrl: server.url, sandboxUrl: server.url, apiKey: API_KEY };
    const sandboxes = await Promise.all(ids.map((id) => Sandbox.connect(id, connection)));
    await isNotHeld(t, server, async (signal) => {
      for (const { commands } of sandboxes) commands.run("true", { background: true }).catch(() => undefined);
      await once(signal, "abort");
      // A busy machine takes longer for them.
      while (agents.some((agent) => agent.bytesSent() < 1_000_000)) await delay(POLL_MS);
    });
  });
});

describe("the event loop of a server with TLS", { timeout: 120_000 }, () => {
  it("is not held by records of a byte of 200 connections", async (t) => {
    const { cert, key } = await loopbackCertificate();
    const folder = await mkdtemp(join(tmpdir(), "coppice-held-tls-"));
    await writeFile(join(folder, "cert.pem"), cert);
    await writeFile(join(folder, "key.pem"), key);
    const tls = { cert: join(folder, "cert.pem"), key: join(folder, "key.pem") };
    const listener = { host: "127.0.0.1", port: 0 };
    const installation = await makeInstallation({
      config: { listeners: { api: { ...listener, tls }, ops: listener } },
    });
    const server = await ServerProcess.start(installation.configFile, { NODE_OPTIONS: `--import=${METER}` });
    t.after(async () => {
      await server.stop();
      await installation.remove();
      await rm(folder, { recursive: true });
    });
    const { port } = new URL(server.url);
    await isNotHeld(t, server, async (signal) => {
      const sockets = Array.from({ length: 200 }, () =>
        connectTls({ port: Number(port), host: "127.0.0.1", rejectUnauthorized: false }),
      );
      await Promise.all(sockets.map((socket) => pourRecords(socket, signal)));
    });
  });
});

/** Sends a body whose bytes are records of their own, until the signal aborts. */
async function pourRecords(socket: Socket, signal: AbortSignal): Promise<void> {
  socket.on("error", () => undefined);
  const closed = new Promise<unknown>((resolve) => socket.once("close", resolve));
  signal.addEventListener("abort", () => void socket.destroy(), { once: true });
  socket.resume();
  socket.write("POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const more = (): void => {
    if (socket.destroyed) return;
    for (const byte of "1\r\nx\r\n".repeat(RECORD_UNITS)) socket.write(byte);
    if (socket.writableNeedDrain) socket.once("drain", more);
    else setImmediate(more);
  };
  more();
  await closed;
}

async function isNotHeld(
  t: TestContext,
  server: ServerProcess,
  attack: (signal: AbortSignal) => Promise<unknown>,
): Promise<void> {
  const turns: { readonly turnMs: number; readonly slowness: number }[] = [];
  const within = (): number => turns.filter(({ turnMs, slowness }) => turnMs <= MOST_MS * slowness).length;
  // A collection of garbage may take that long, now and then. What holds the loop does so in each try.
  while (within() < 2 && turns.length < MOST_TRIES) {
    const before = slowness();
    await server.ask(LONGEST_STALL);
    await attack(AbortSignal.timeout(EACH_MS));
    turns.push({
      turnMs: Number(await server.ask(LONGEST_STALL)),
      slowness: Math.max(before, slowness()),
    });
  }
  const told = turns
    .map(({ turnMs, slowness }) => `${turnMs.toFixed(1)} of ${(MOST_MS * slowness).toFixed(1)}`)
    .join(", ");
  t.diagnostic(`longest turns: ${told} ms`);
  assert.equal(within(), 2, `turns took ${told} ms`);
}
