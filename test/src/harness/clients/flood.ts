import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import type { AddressInfo } from "node:net";

/** Bytes that a peer sends: some once, and then a unit again and again. */
export interface Flood {
  readonly head?: string | Uint8Array;
  readonly unit: string | Uint8Array;
  /** Most units. Without an end when absent. */
  readonly units?: number;
}

const BLOCK_BYTES = 64 * 1024;
/** Between two connections of one that the server closes at once. */
const PAUSE_MS = 5;

/**
 * Floods a server over some connections until the signal aborts, as fast as it reads. Answers are read and ignored, and
 * connections that it closes are opened again.
 * @returns the bytes that it took.
 */
export async function floodServer(
  url: string,
  flood: Flood,
  { connections, signal }: { readonly connections: number; readonly signal: AbortSignal },
): Promise<number> {
  const { hostname, port } = new URL(url);
  let bytes = 0;
  const one = async (): Promise<void> => {
    while (!signal.aborted) {
      const socket = connect(Number(port), hostname);
      await pour(socket, flood, signal);
      bytes += socket.bytesWritten - socket.writableLength;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  };
  await Promise.all(Array.from({ length: connections }, one));
  return bytes;
}

/** A program that floods each of its clients with the same bytes, whatever they ask. */
export async function floodingProgram(flood: Flood): Promise<AsyncDisposable & { readonly port: number }> {
  const left = new AbortController();
  const server = createServer((socket) => {
    socket.once("data", () => void pour(socket, flood, left.signal));
    socket.on("error", () => undefined);
    left.signal.addEventListener("abort", () => socket.destroy());
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    port: (server.address() as AddressInfo).port,
    async [Symbol.asyncDispose]() {
      left.abort();
      server.close();
      await once(server, "close");
    },
  };
}

/** Resolves when the peer has closed the connection, or the signal has aborted. */
export async function pour(socket: Socket, flood: Flood, signal: AbortSignal): Promise<void> {
  const unit = Buffer.from(flood.unit as string, "latin1");
  const each = Math.max(1, Math.floor(BLOCK_BYTES / Math.max(1, unit.length)));
  const block = Buffer.concat(Array.from({ length: each }, () => unit));
  let left = flood.units ?? Infinity;
  const closed = new Promise<unknown>((resolve) => socket.once("close", resolve));
  const end = (): void => void socket.destroy();
  signal.addEventListener("abort", end);
  if (signal.aborted) end();
  socket.on("error", () => undefined);
  socket.resume();
  if (flood.head !== undefined) socket.write(Buffer.from(flood.head as string, "latin1"));
  const more = (): void => {
    while (left > 0 && !socket.destroyed) {
      const now = Math.min(left, each);
      left -= now;
      if (!socket.write(block.subarray(0, now * unit.length))) return;
    }
  };
  socket.on("drain", more);
  more();
  await closed;
  signal.removeEventListener("abort", end);
}
