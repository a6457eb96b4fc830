import assert from "node:assert/strict";
import { once } from "node:events";
import {
  Agent as HttpAgent,
  createServer,
  type IncomingMessage,
  request,
  type Server,
  type ServerResponse,
} from "node:http";
import { Agent as HttpsAgent } from "node:https";
import { type AddressInfo, connect } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import { describe, it } from "node:test";
import type { SurfaceRequest } from "@coppice/core";
import { HttpPeer } from "./http-peer.js";

const REQUEST = { id: "1", clientAddress: "127.0.0.1", protocol: "http", surface: "api" } as SurfaceRequest;

async function listen(server: Server): Promise<number> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return (server.address() as AddressInfo).port;
}

describe("another server of a fleet", () => {
  it("is not asked for a client that has left before it was found", async () => {
    let asked = 0;
    const other = createServer((_, response) => {
      asked += 1;
      response.end("too late");
    });
    const connections = { http: new HttpAgent(), https: new HttpsAgent() };
    const peer = new HttpPeer({
      address: `http://127.0.0.1:${await listen(other)}`,
      node: "other",
      secret: "secret",
      connections,
      connectMs: 1000,
      onFailure: () => undefined,
    });
    const front = createServer();
    const port = await listen(front);

    const left = request({ port }).on("error", () => undefined);
    left.end();
    const [message, response] = (await once(front, "request")) as [IncomingMessage, ServerResponse];
    left.destroy();
    await once(response, "close");
    await peer.relay(REQUEST, { message, response });

    const socket = connect(port);
    socket.write("GET / HTTP/1.1\r\nhost: front\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
    const [upgrade, duplex, head] = (await once(front, "upgrade")) as Parameters<typeof upgradeOf>;
    socket.destroy();
    duplex.destroy();
    await once(duplex, "close");
    await peer.relayUpgrade(REQUEST, upgradeOf(upgrade, duplex, head));

    await pause(100);
    assert.equal(asked, 0);
    connections.http.destroy();
    front.close();
    other.close();
  });
});

function upgradeOf(message: IncomingMessage, socket: IncomingMessage["socket"], head: Buffer) {
  return { message, socket, head };
}
