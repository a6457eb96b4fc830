import assert from "node:assert/strict";
import { createCipheriv, createHash } from "node:crypto";
import { once } from "node:events";
import {
  Agent as HttpAgent,
  createServer,
  type IncomingMessage,
  request,
  type Server,
  type ServerResponse,
} from "node:http";
import { createServer as createTlsServer, Agent as HttpsAgent } from "node:https";
import { type AddressInfo, connect, type Socket } from "node:net";
import { Readable } from "node:stream";
import { buffer, text } from "node:stream/consumers";
import { connect as connectTls } from "node:tls";
import { setTimeout as pause } from "node:timers/promises";
import { describe, it } from "node:test";
import type { SurfaceRequest } from "@coppice/core";
import { loopbackCertificate } from "@coppice/core/testing";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { HttpPeer, type HttpPeerOptions, peerConnections } from "./http-peer.js";

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
    const uses = { kept: 0, opened: 0 };
    const connections = { http: new HttpAgent(), https: new HttpsAgent(), maxAnswer: 1024, uses };
    const peer = new HttpPeer({
      node: "other",
      ...trusted(`http://127.0.0.1:${await listen(other)}`),
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
    assert.deepEqual(uses, { kept: 0, opened: 0 });
    connections.http.destroy();
    front.close();
    other.close();
  });
});

describe("a request that is passed on", () => {
  it("is answered by the other server, over one connection that is kept", async () => {
    let connections = 0;
    await using pair = await relayed((message, response) => {
      void buffer(message).then((body) => {
        response.writeHead(201, { "x-path": String(message.url), "x-method": String(message.method) });
        response.end(`got ${body.length} of ${message.headers["content-length"] ?? "chunks"}`);
      });
    });
    pair.other.on("connection", () => {
      connections += 1;
    });
    for (const [method, body, expected] of [
      ["GET", undefined, "got 0 of chunks"],
      ["POST", "abc", "got 3 of 3"],
      ["POST", new Blob(["x".repeat(300_000)]).stream(), "got 300000 of chunks"],
      ["DELETE", undefined, "got 0 of chunks"],
    ] as const) {
      const init =
        body instanceof ReadableStream ? { body, duplex: "half" as const } : { ...(body && { body }) };
      const answer = await fetch(`${pair.url}/a?b`, { method, ...init });
      assert.equal(answer.status, 201);
      assert.equal(answer.headers.get("x-path"), "/a?b");
      assert.equal(answer.headers.get("x-method"), method);
      assert.equal(await answer.text(), expected);
    }
    const head = await fetch(pair.url, { method: "HEAD" });
    assert.equal(await head.text(), "");
    assert.equal(connections, 1);
    assert.deepEqual(pair.uses, { kept: 4, opened: 1 });
  });

  it("reaches a server with a certificate of the fleet's own authority, and no other", async () => {
    const trusted = await loopbackCertificate();
    const stranger = await loopbackCertificate();
    for (const tls of [trusted, stranger]) {
      await using pair = await relayed((_, response) => response.end("encrypted"), { tls, ca: trusted.cert });
      const answer = await fetch(pair.url);
      if (tls === trusted) assert.equal(await answer.text(), "encrypted");
      else assert.deepEqual([answer.status, pair.failures()], [503, 1]);
    }
  });

  it("is sent again when a kept connection turns out to be dead, if nothing can happen twice", async () => {
    let hangsUp = false;
    await using pair = await relayed((message, response) => {
      // As one that was restarted.
      if (hangsUp) message.socket.destroy();
      else response.end("here");
      hangsUp = false;
    });
    for (const method of ["GET", "POST"]) {
      assert.equal(await (await fetch(pair.url)).text(), "here");
      hangsUp = true;
      const answer = await fetch(pair.url, { method });
      if (method === "GET") assert.equal(await answer.text(), "here");
      else assert.deepEqual([answer.status, pair.failures()], [503, 1]);
    }
  });

  it("is cut where its answer is cut, and ends with the connections to a server that is gone", async () => {
    await using pair = await relayed((message, response) => {
      response.write("begun");
      if (message.url === "/cut") setTimeout(() => message.socket.destroy(), 50);
    });
    for (const path of ["/cut", "/hangs"]) {
      const answer = await fetch(pair.url + path);
      if (path === "/hangs") setTimeout(() => pair.peer.end(), 50);
      await assert.rejects(answer.text());
    }
  });

  it("ends a Connect stream that is cut between two messages with an error, and one in a message as it is", async () => {
    const frame = (flags: number, length: number): Buffer => {
      const bytes = Buffer.alloc(5 + length, "x");
      bytes.writeUInt8(flags);
      bytes.writeUInt32BE(length, 1);
      return bytes;
    };
    const whole = [frame(0, 3), frame(1, 70_000), frame(0, 0)];
    const streams: Readonly<Record<string, readonly Buffer[]>> = {
      whole,
      head: [...whole, frame(0, 9).subarray(0, 3)],
      message: [...whole, frame(0, 9).subarray(0, 10)],
      over: [...whole, frame(2, 2)],
    };
    let isKilled = false;
    await using pair = await relayed((message, response) => {
      response.setHeader("content-type", "application/connect+proto");
      const bytes = Buffer.concat(streams[message.url?.slice(1) ?? ""] ?? []);
      // In pieces that begin and end anywhere.
      response.write(bytes.subarray(0, 2));
      setTimeout(() => response.write(bytes.subarray(2, 11)), 20);
      setTimeout(() => response.write(bytes.subarray(11)), 40);
      setTimeout(() => {
        // As a process that is killed.
        if (isKilled) pair.other.close();
        message.socket.destroy();
      }, 80);
    });
    // One that is there has cut the stream itself, which E2B's SDKs take for the end of the sandbox.
    await assert.rejects((await fetch(`${pair.url}/whole`)).arrayBuffer());
    for (const path of ["head", "message", "over"])
      await assert.rejects((await fetch(`${pair.url}/${path}`)).arrayBuffer(), path);
    isKilled = true;
    const answer = Buffer.from(await (await fetch(`${pair.url}/whole`)).arrayBuffer());
    const sent = Buffer.concat(whole);
    assert.ok(answer.subarray(0, sent.length).equals(sent));
    const end = answer.subarray(sent.length);
    assert.deepEqual([end[0], end.readUInt32BE(1)], [2, end.length - 5]);
    const { error } = JSON.parse(end.subarray(5).toString()) as { readonly error: Record<string, string> };
    assert.equal(error["code"], "unavailable");
    assert.match(error["message"] ?? "", /server 'other' of the fleet was lost/);
  });

  it("brings every client the bytes of its own answer, whatever the pace of the others", async () => {
    await using pair = await relayed((message, response) => {
      const bytes = bytesOf(String(message.url));
      if (message.url?.startsWith("/sized")) response.setHeader("content-length", bytes.length);
      // Pieces that fit no block.
      const pieces = Array.from({ length: 73 }, (_, index) =>
        bytes.subarray((index * bytes.length) / 73, ((index + 1) * bytes.length) / 73),
      );
      Readable.from(pieces).pipe(response);
    });
    const ask = async (path: string, pace: number): Promise<void> => {
      const client = request(pair.url + path, { agent: false }).end();
      const [answer] = (await once(client, "response")) as [IncomingMessage];
      const got: Buffer[] = [];
      for await (const bytes of answer as AsyncIterable<Buffer>) {
        got.push(bytes);
        // One that leaves in the middle.
        if (pace < 0 && got.length > 20) return void client.destroy();
        if (pace > 0 && got.length % 8 === 0) await pause(pace);
      }
      assert.ok(Buffer.concat(got).equals(bytesOf(path)), `${path} got other bytes`);
    };
    for (let round = 0; round < 2; round++) {
      const clients = Array.from({ length: 12 }, (_, index) =>
        ask(`/${index % 2 === 0 ? "sized" : "chunks"}/${round}/${index}`, [0, 4, -1][index % 3] as number),
      );
      await Promise.all(clients);
    }
  });

  it("brings pipelined requests their own answers in turn, also over TLS, and others to clients that leave", async () => {
    const tls = await loopbackCertificate();
    await using pair = await relayed(
      (message, response) => {
        const [, kind, pace] = String(message.url).split("/");
        const bytes = bytesOf(String(message.url));
        if (kind === "sized" || kind === "small") response.setHeader("content-length", bytes.length);
        if (kind === "none") response.writeHead(204);
        // The later it was asked for, the sooner it comes.
        setTimeout(() => {
          for (let at = 0; at < bytes.length; at += 300_007) response.write(bytes.subarray(at, at + 300_007));
          response.end();
        }, Number(pace));
      },
      { frontTls: tls },
    );
    // Small ones come whole before the first one has gone.
    const kinds = ["sized", "small", "small", "chunks", "none", "chunks", "sized", "small", "chunks"];
    const converse = async (client: Socket, name: string, leavesAfter = Number.POSITIVE_INFINITY) => {
      client.on("error", () => undefined);
      const asked = kinds.map((kind, index) => ({
        path: `/${kind}/${(kinds.length - index) * 10}/${name}`,
        method: index === 5 || index === 6 ? "HEAD" : "GET",
      }));
      const last = { path: "/sized/0/last", method: "GET" };
      for (const { path, method } of [...asked, last])
        client.write(
          `${method} ${path} HTTP/1.1\r\nhost: front\r\n${path === last.path ? "connection: close\r\n" : ""}\r\n`,
        );
      const got: Buffer[] = [];
      let count = 0;
      for await (const bytes of client as AsyncIterable<Buffer>) {
        got.push(bytes);
        count += bytes.length;
        if (count > leavesAfter) return void client.destroy();
        if (got.length % 32 === 0) await pause(2);
      }
      const answers = answersIn(
        Buffer.concat(got),
        [...asked, last].map(({ method }) => method),
      );
      for (const [index, { path, method }] of [...asked, last].entries()) {
        const isBare = method === "HEAD" || path.startsWith("/none");
        const expected = isBare ? Buffer.alloc(0) : bytesOf(path);
        assert.ok(answers[index]?.equals(expected), `${method} ${path} got other bytes`);
      }
    };
    const dial = (isTls: boolean): Socket => {
      const { port } = new URL(isTls ? pair.tlsUrl : pair.url);
      const to = { port: Number(port), host: "127.0.0.1" };
      return isTls ? connectTls({ ...to, ca: tls.cert }) : connect(to);
    };
    const clients = Array.from({ length: 12 }, (_, index) =>
      converse(dial(index % 3 === 0), String(index), index % 2 === 0 ? undefined : index * 1_500_000),
    );
    await Promise.all(clients);
  });

  it("does not wait for a client that left, nor hold what it reads slowly", async () => {
    const { promise: left, resolve } = Promise.withResolvers<void>();
    let written = 0;
    await using pair = await relayed((_, response) => {
      const block = Buffer.alloc(1024 * 1024);
      const write = (): void => {
        written += block.length;
        if (written < 256 * block.length && response.write(block)) setImmediate(write);
      };
      response.on("drain", write).once("close", resolve);
      write();
    });
    const client = request(pair.url).end();
    const [answer] = (await once(client, "response")) as [IncomingMessage];
    answer.pause();
    await pause(300);
    assert.ok(written < 64 * 1024 * 1024, `${written} bytes are held`);
    client.destroy();
    await left;
  });
});

it("a server is asked itself, whatever a client's path looks like", async () => {
  await using pair = await relayed((message, response) => response.end(JSON.stringify(message.url)));
  const url = new URL("http://front//stranger.invalid/list?limit=1");
  const { body } = await pair.peer.get({ ...REQUEST, url }, AbortSignal.timeout(5000));
  assert.equal(body, "//stranger.invalid/list?limit=1");
});

describe("an upgrade that is passed on", () => {
  it(
    "is refused with the other server's whole answer, or is cut where that is cut",
    { timeout: 10_000 },
    async () => {
      await using pair = await relayed(() => {});
      pair.other.on("upgrade", (message, socket) => {
        const long = "x".repeat(60_000);
        const head = `HTTP/1.1 403 Forbidden\r\nx-long: ${long}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n`;
        socket.write(`${head}4\r\nbody\r\n`);
        if (message.url === "/cut") setTimeout(() => socket.destroy(), 50);
        else socket.end("0\r\n\r\n");
      });
      for (const path of ["/refused", "/cut"]) {
        const asked = request(pair.url + path, {
          maxHeaderSize: 100_000,
          headers: { connection: "upgrade", upgrade: "websocket" },
        });
        const [answer] = (await once(asked.end(), "response")) as [IncomingMessage];
        assert.equal(answer.statusCode, 403);
        if (path === "/cut") await assert.rejects(text(answer));
        else assert.equal(await text(answer), "body");
      }
    },
  );

  it("is refused to a client that has ended its side already", { timeout: 10_000 }, async () => {
    await using pair = await relayed(() => {});
    pair.other.on("upgrade", (_, socket) => {
      // The end of its client has come meanwhile.
      setTimeout(() => socket.end("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno"), 100);
    });
    const client = connect({ port: Number(new URL(pair.url).port), host: "127.0.0.1", allowHalfOpen: true });
    client.end("GET / HTTP/1.1\r\nhost: front\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
    assert.match(await text(client), /^HTTP\/1\.1 403 Forbidden\r\n[^]*\r\n\r\nno$/);
  });

  it(
    "ends with its client also where it is never answered, and has what that sent early",
    { timeout: 10_000 },
    async () => {
      await using pair = await relayed(() => {});
      for (const path of ["/silent", "/echoes"]) {
        const client = connect(Number(new URL(pair.url).port), "127.0.0.1");
        client.write(
          `GET ${path} HTTP/1.1\r\nhost: front\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n`,
        );
        const [, upgraded] = (await once(pair.other, "upgrade")) as [IncomingMessage, Socket];
        client.write("early");
        await pause(50);
        if (path === "/echoes") {
          upgraded.write(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
          );
          upgraded.pipe(upgraded);
          client.end();
          assert.match(await text(client), /early$/);
        } else {
          client.end();
          await once(upgraded.on("error", () => undefined).resume(), "end");
          upgraded.destroy();
        }
      }
    },
  );
});

/** A server at that address, of the same fleet. */
function trusted(address: string): Pick<HttpPeerOptions, "secrets" | "server"> {
  const secrets = new FleetSecrets({ secret: "secret" });
  const [secret = ""] = Object.keys(secrets.proofsOf(["record"]));
  return { secrets, server: { address, identity: "other", run: "run", secret } };
}

/** 6 MiB of a path's own, or 100 kB. */
function bytesOf(path: string): Buffer {
  const key = createHash("sha256").update(path).digest();
  const zeros = Buffer.alloc(path.startsWith("/small") ? 100_000 : 6 * 2 ** 20);
  return createCipheriv("aes-256-ctr", key, Buffer.alloc(16)).update(zeros);
}

/** The bodies of the answers to requests of these methods, which are all of the bytes. */
function answersIn(bytes: Buffer, methods: readonly string[]): Buffer[] {
  let at = 0;
  const until = (end: string): string => {
    const from = at;
    at = bytes.indexOf(end, from) + end.length;
    assert.ok(at >= end.length + from, "an answer is cut");
    return bytes.toString("latin1", from, at);
  };
  const take = (count: number): Buffer => bytes.subarray(at, (at += count));
  const bodies = methods.map((method) => {
    const head = until("\r\n\r\n");
    if (method === "HEAD" || head.startsWith("HTTP/1.1 204")) return Buffer.alloc(0);
    const length = /^content-length: (\d+)/im.exec(head)?.[1];
    if (length !== undefined) return take(Number(length));
    const chunks: Buffer[] = [];
    do {
      chunks.push(take(Number.parseInt(until("\r\n"), 16)));
      until("\r\n");
    } while (chunks.at(-1)?.length !== 0);
    return Buffer.concat(chunks);
  });
  assert.equal(at, bytes.length);
  return bodies;
}

interface Certificate {
  readonly cert: string;
  readonly key: string;
}

/** A server in front that passes every request on to another one. @param ca the authority of the other's certificate. */
async function relayed(
  serve: (message: IncomingMessage, response: ServerResponse) => void,
  {
    tls,
    ca,
    frontTls,
  }: { readonly tls?: Certificate; readonly ca?: string; readonly frontTls?: Certificate } = {},
) {
  let failures = 0;
  const other = tls === undefined ? createServer(serve) : createTlsServer(tls, serve);
  const connections = peerConnections({ maxAnswer: 1024, ...(ca !== undefined && { ca }) });
  const peer = new HttpPeer({
    node: "other",
    ...trusted(`${tls === undefined ? "http" : "https"}://127.0.0.1:${await listen(other)}`),
    connections,
    connectMs: 1000,
    onFailure: () => {
      failures += 1;
    },
  });
  const pass = (message: IncomingMessage, response: ServerResponse): void => {
    peer.relay(REQUEST, { message, response }).catch(() => response.writeHead(503).end());
  };
  const front = createServer(pass);
  const tlsFront = createTlsServer(frontTls ?? {}, pass);
  front.on("upgrade", (message, socket, head) => {
    socket.on("error", () => undefined);
    void peer.relayUpgrade(REQUEST, { message, socket, head });
  });
  return {
    url: `http://127.0.0.1:${await listen(front)}`,
    tlsUrl: `https://127.0.0.1:${await listen(tlsFront)}`,
    other,
    peer,
    uses: connections.uses,
    failures: () => failures,
    async [Symbol.asyncDispose]() {
      peer.end();
      connections[Symbol.dispose]();
      for (const server of [front, tlsFront, other]) {
        server.closeAllConnections();
        await new Promise((resolve) => server.close(resolve));
      }
    },
  };
}

function upgradeOf(message: IncomingMessage, socket: IncomingMessage["socket"], head: Buffer) {
  return { message, socket, head };
}
