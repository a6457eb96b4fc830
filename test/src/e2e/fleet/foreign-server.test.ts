import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, describe, it } from "node:test";
import { WebSocket } from "ws";
import { Sandbox } from "@e2b/code-interpreter";
import { eventually } from "@coppice/core/testing";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";
import { commandScenarios } from "../sdk/command-scenarios.js";
import { fileScenarios } from "../sdk/file-scenarios.js";

/** Answers with what it was asked, and echoes what a WebSocket sends. */
const PROGRAM = `
import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
const server = createServer((request, response) => {
  let body = "";
  request.on("data", (part) => (body += part));
  request.on("end", () => {
    response.end(JSON.stringify({ url: request.url, body, names: request.rawHeaders.join(" ") }));
  });
});
server.on("upgrade", ({ headers }, socket) => {
  const accept = createHash("sha1")
    .update(headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
    .digest("base64");
  socket.write("HTTP/1.1 101 Switching Protocols\\r\\nupgrade: websocket\\r\\nconnection: upgrade\\r\\n");
  socket.write("sec-websocket-accept: " + accept + "\\r\\n\\r\\n");
  socket.on("data", (frame) => {
    const length = frame[1] & 127;
    const mask = frame.subarray(2, 6);
    const text = frame.subarray(6, 6 + length).map((byte, index) => byte ^ mask[index % 4]);
    socket.write(Buffer.concat([Buffer.of(0x81, length), text]));
  });
  socket.on("error", () => {});
});
server.listen(0, "127.0.0.1", () => writeFileSync("port", String(server.address().port)));
`;

describe("a server of a fleet, for the sandboxes of another one", { skip: reasonWithoutEtcd() }, () => {
  let etcd: Cluster;
  let fleet: Fleet;
  let sandbox: Sandbox;
  let urls: { readonly own: string; readonly foreign: string };
  const urlOf = (index: number): string => fleet.servers[index]?.url ?? "";

  before(async () => {
    etcd = await startEtcd();
    fleet = await startFleet({ count: 2, store: { etcd: { endpoints: etcd.endpoints } } });
    pointSdkAt(urlOf(0));
    const { sandboxId } = await Sandbox.create();
    // From now on every request goes to the server that has nothing of it.
    const [own, foreign] = fleet.servers.toSorted((_, other) => (other.sandboxes.find(sandboxId) ? 1 : -1));
    assert.ok(own?.sandboxes.find(sandboxId));
    assert.equal(foreign?.sandboxes.find(sandboxId), undefined);
    urls = { own: own?.url ?? "", foreign: foreign?.url ?? "" };
    pointSdkAt(urls.foreign);
    sandbox = await Sandbox.connect(sandboxId);
  });
  after(async () => {
    await fleet[Symbol.asyncDispose]();
    await etcd[Symbol.asyncDispose]();
  });

  describe("runs commands", () => commandScenarios(() => sandbox));
  describe("serves files", () => fileScenarios(() => sandbox));

  it("passes requests and WebSockets on to programs in it, without a word of the fleet", async () => {
    await sandbox.files.write("serve.mjs", PROGRAM);
    await sandbox.commands.run(`${process.execPath} serve.mjs`, { background: true });
    const port = Number(await eventually("it listens", () => sandbox.files.read("port").catch(() => "")));
    const headers = { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": String(port) };
    const answer = await fetch(`${urls.foreign}/path?q=1`, {
      method: "POST",
      headers: { ...headers, "x-own": "kept", "coppice-fleet-principal": "forged" },
      body: "a body",
    });
    const { url, body, names } = (await answer.json()) as Readonly<Record<"url" | "body" | "names", string>>;
    assert.deepEqual([url, body], ["/path?q=1", "a body"]);
    assert.match(names, /x-own/);
    assert.doesNotMatch(names, /coppice/);
    const socket = new WebSocket(`${urls.foreign.replace("http", "ws")}/socket`, { headers });
    socket.on("open", () => socket.send("hello"));
    const [echoed] = (await once(socket, "message")) as [Buffer];
    assert.equal(echoed.toString(), "hello");
    socket.terminate();
  });

  it("takes requests of other servers alone at the listener for them", async () => {
    const { fleet: url = "" } = fleet.servers[0]?.urls ?? {};
    for (const proof of [undefined, "", "x".repeat(64)]) {
      const headers = { "x-api-key": API_KEY, ...(proof !== undefined && { "coppice-fleet-proof": proof }) };
      for (const path of ["/sandboxes", "/node", `/sandboxes/${sandbox.sandboxId}`])
        assert.equal((await fetch(url + path, { headers })).status, 401);
    }
  });

  it("tells what the other server knows, and passes changes on", async () => {
    const info = await Sandbox.getInfo(sandbox.sandboxId);
    assert.equal(info.sandboxId, sandbox.sandboxId);
    await Sandbox.setTimeout(sandbox.sandboxId, 60_000);
    await Sandbox.kill(sandbox.sandboxId);
    pointSdkAt(urls.own);
    await assert.rejects(Sandbox.getInfo(sandbox.sandboxId), /not found/);
    pointSdkAt(urls.foreign);
    await assert.rejects(Sandbox.getInfo(sandbox.sandboxId), /not found/);
  });
});
