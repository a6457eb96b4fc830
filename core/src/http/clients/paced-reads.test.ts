import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { EventEmitter, once } from "node:events";
import { createServer, get, type IncomingMessage, type ServerResponse } from "node:http";
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from "node:net";
import { it } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { paceAnswer, paceReads, passBodyWhole, TlsTurns } from "./paced-reads.js";
import { isTurnOver } from "../../kernel/turns.js";

/** Records that a turn which is over still takes, see paced-reads.ts. */
const MOST_LATE = 16;

const MOST_BYTES = 32 * 1024;
const BODY_BYTES = 4 * 2 ** 20 + 1;
const HEAD = `POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ${BODY_BYTES}\r\n\r\n`;
const REQUESTS = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3000);

it("a body whose reader asks for it comes whole, the requests around it in slices", async () => {
  const pieces: number[] = [];
  const bodies: number[] = [];
  let unanswered = 3002;
  const serve = async (message: IncomingMessage, response: ServerResponse): Promise<void> => {
    await turn();
    if (message.method === "POST") passBodyWhole(message);
    let bytes = 0;
    for await (const chunk of message as AsyncIterable<Buffer>) bytes += chunk.length;
    bodies.push(bytes);
    response.end();
    unanswered -= 1;
    if (unanswered === 0) client.end();
  };
  const server = createServer((message, response) => void serve(message, response));
  server.on("connection", (socket) => {
    paceReads(socket);
    socket.prependListener("data", (piece: Buffer) => pieces.push(piece.length));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1");
  client.resume().write(HEAD + "x".repeat(BODY_BYTES) + HEAD + "x".repeat(BODY_BYTES) + REQUESTS);
  await once(client, "close");
  server.close();
  assert.deepEqual(
    bodies.filter((bytes) => bytes > 0),
    [BODY_BYTES, BODY_BYTES],
  );
  assert.equal(bodies.length, 3002);
  const ends = pieces.map((_, index) => pieces.slice(0, index + 1).reduce((sum, bytes) => sum + bytes, 0));
  const endOfFirst = ends.indexOf(HEAD.length + BODY_BYTES);
  const endOfSecond = ends.indexOf(2 * (HEAD.length + BODY_BYTES));
  assert.ok(endOfFirst > 0 && endOfSecond > endOfFirst, "no piece has the end of a body and what follows");
  assert.ok(Math.max(...pieces.slice(0, endOfSecond)) > MOST_BYTES);
  assert.ok(Math.max(...pieces.slice(endOfSecond + 1)) <= MOST_BYTES);
});

it("the memory of a body that comes whole is given back once the parser has copied it", async () => {
  const pieces: Buffer[] = [];
  const body = randomBytes(BODY_BYTES);
  const received = createHash("sha256");
  const serve = async (message: IncomingMessage, response: ServerResponse): Promise<void> => {
    await turn();
    passBodyWhole(message);
    for await (const chunk of message as AsyncIterable<Buffer>) received.update(chunk);
    response.end(() => client.end());
  };
  const server = createServer((message, response) => void serve(message, response));
  server.on("connection", (socket) => {
    paceReads(socket);
    socket.prependListener("data", (piece: Buffer) => pieces.push(piece));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1");
  client.resume().write(HEAD);
  client.write(body);
  await once(client, "close");
  server.close();
  assert.equal(received.digest("hex"), createHash("sha256").update(body).digest("hex"));
  const given = pieces.filter(({ buffer }) => (buffer as ArrayBuffer).detached);
  assert.ok(given.length > pieces.length / 2, `${given.length} of ${pieces.length}`);
});

it("a body of which something has been read or skipped stays in slices", async () => {
  const pieces: number[] = [];
  const server = createServer((message, response) => {
    message.once("data", () => {
      passBodyWhole(message);
      message.resume();
    });
    message.once("end", () => response.end(() => client.end()));
  });
  server.on("connection", (socket) => {
    paceReads(socket);
    socket.prependListener("data", (piece: Buffer) => pieces.push(piece.length));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = connect((server.address() as AddressInfo).port, "127.0.0.1");
  client.resume().write(HEAD + "x".repeat(BODY_BYTES));
  await once(client, "close");
  server.close();
  assert.ok(Math.max(...pieces) <= MOST_BYTES);
});

it("connections of TLS are read one in each turn, first and after a turn that records have filled", async () => {
  const turns = new TlsTurns();
  const reading = new Set<number>();
  const raws = [0, 1, 2].map((number) =>
    Object.assign(new EventEmitter(), {
      destroyed: false,
      _handle: { readStart: () => reading.add(number), readStop: () => reading.delete(number) },
    }),
  );
  const areRead = async (count: number): Promise<void> => {
    for (let read = 0; read < count; read += 1) {
      assert.equal(reading.size, read);
      await turn();
    }
    assert.equal(reading.size, count);
  };
  for (const raw of raws) turns.add(raw as unknown as Socket, raw);
  await areRead(3);

  const records: Buffer[] = [];
  const socket = { push: (record: Buffer) => records.push(record) > 0 } as unknown as Socket;
  turns.watch(socket);
  const record = Buffer.from("record");
  assert.ok(socket.push(record));
  while (!isTurnOver());
  for (let late = 1; late < MOST_LATE; late += 1) socket.push(record);
  assert.equal(reading.size, 3);
  socket.push(record);
  assert.equal(records.length, MOST_LATE + 1);
  // One that closes meanwhile is read no more.
  raws[0]?.emit("close");
  Object.assign(raws[0] ?? {}, { destroyed: true });
  assert.equal(reading.size, 0);
  await turn();
  await areRead(2);
});

it("a server that answers with 1xx without an end is given up, and a few of them are not", async () => {
  const interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
  const flood = (socket: Socket): void => {
    while (!socket.destroyed && socket.write(interim.repeat(100)));
  };
  const statusAfter = async (answer: (socket: Socket) => void): Promise<unknown> => {
    const server = createTcpServer((socket) => {
      socket.on("error", () => undefined).once("data", () => answer(socket));
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    const request = get({ port: (server.address() as AddressInfo).port, host: "127.0.0.1", agent: false });
    paceAnswer(request);
    try {
      const [answer] = (await once(request, "response")) as [IncomingMessage];
      return answer.statusCode;
    } catch (error) {
      return (error as Error).message;
    } finally {
      request.destroy();
      server.close();
    }
  };
  const few = `${interim.repeat(20)}HTTP/1.1 204 No Content\r\n\r\n`;
  assert.equal(await statusAfter((socket) => void socket.write(few)), 204);
  const said = await statusAfter((socket) => flood(socket.on("drain", () => flood(socket))));
  assert.equal(said, "the server answers with 1xx without an end");
});
