import { once } from "node:events";
import { rm } from "node:fs/promises";
import { createServer, type Socket } from "node:net";

const HELLO = 0x81;
const PROCESSES_END = 0x83;
const STARTED = 0x84;
const OUTPUT = 0x86;
const TAKEN = 0x8a;
const ACCOUNT = 0x90;
const ASKS_ACCOUNT = 0x10;
const HEADER_BYTES = 9;

/** Answer to a request other than for an account. `docs/agent-protocol.md` lists them. */
export type Misbehaviour = (request: {
  readonly type: number;
  readonly id: number;
  readonly socket: Socket;
}) => void;

/** Listens at the address of a sandbox's agent, sends the same greeting and an account, and then misbehaves. */
export interface StandInAgent extends AsyncDisposable {
  /** Resolves when the server has left. */
  readonly cut: Promise<void>;
  /** Bytes that it could send, without those still in its memory. */
  bytesSent(): number;
}

/** @param path of the agent's socket, which it takes. */
export async function standInForAgent(path: string, misbehave: Misbehaviour): Promise<StandInAgent> {
  await rm(path);
  const sockets = new Set<Socket>();
  const { promise: cut, resolve } = Promise.withResolvers<void>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined);
    socket.on("close", resolve);
    let received: Buffer = Buffer.alloc(0);
    socket.on("data", (data: Buffer) => {
      received = Buffer.concat([received, data]);
      while (received.length >= HEADER_BYTES && received.length >= 4 + received.readUInt32LE(0)) {
        const type = received.readUInt8(4);
        const id = received.readUInt32LE(5);
        received = received.subarray(4 + received.readUInt32LE(0));
        if (type === ASKS_ACCOUNT) socket.write(account(id));
        else if (id !== 0) misbehave({ type, id, socket });
      }
    });
    const hello = Buffer.from("COPP\0\0\0\0\0\0", "latin1");
    hello.writeUInt16LE(1, 4);
    hello.writeUInt32LE(1, 6);
    socket.write(Buffer.concat([frame(HELLO, 0, hello), frame(PROCESSES_END, 0)]));
  }).listen(path);
  await once(server, "listening");
  return {
    cut,
    bytesSent: () =>
      [...sockets].reduce((sum, socket) => sum + socket.bytesWritten - socket.writableLength, 0),
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      server.close();
      await once(server, "close");
    },
  };
}

/** Frame that reports a program's start. */
export function started(id: number): Buffer {
  return frame(STARTED, id, Buffer.from([7, 0, 0, 0]));
}

/** Frame with output of a program. */
export function output(id: number, bytes: number): Buffer {
  return frame(OUTPUT, id, Buffer.alloc(bytes));
}

/** Frame that confirms input, of no bytes. */
export function taken(id: number): Buffer {
  return frame(TAKEN, id, Buffer.alloc(4));
}

function account(id: number): Buffer {
  const text = (value: string): Buffer => Buffer.concat([Buffer.from([value.length, 0]), Buffer.from(value)]);
  const numbers = Buffer.alloc(8);
  numbers.writeUInt32LE(1000, 0);
  numbers.writeUInt32LE(1000, 4);
  return frame(
    ACCOUNT,
    id,
    Buffer.concat([text("user"), numbers, text("/home/user"), text("/bin/sh"), Buffer.from([0, 0])]),
  );
}

function frame(type: number, id: number, payload: Buffer = Buffer.alloc(0)): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32LE(HEADER_BYTES - 4 + payload.length, 0);
  header.writeUInt8(type, 4);
  header.writeUInt32LE(id, 5);
  return Buffer.concat([header, payload]);
}
