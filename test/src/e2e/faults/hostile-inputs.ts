import type { Sandbox } from "e2b";
import { packFrame } from "../../harness/clients/connect-frames.js";
import { exchange } from "../../harness/clients/exchange.js";
import { type Flood, floodingProgram, floodServer } from "../../harness/clients/flood.js";
import { API_KEY } from "../../harness/server/api-key.js";
import type { ServerProcess } from "../../harness/server/server-process.js";

/** Who is attacked. */
export interface World {
  readonly server: ServerProcess;
  readonly sandbox: Sandbox;
  readonly token: string;
  /** Of a command in the sandbox that reads its input. */
  readonly pid: number;
  /** Id of a kernel in it. */
  readonly kernel: string;
}

export interface HostileInput {
  readonly name: string;
  /** Sends it again and again until the signal aborts. */
  readonly send: (world: World, signal: AbortSignal) => Promise<unknown>;
}

const ENVD_PORT = 49983;
/** Without a plugin behind it. */
const FREE_PORT = 3000;
const KEY = `X-API-Key: ${API_KEY}`;
const CHUNKED = "Transfer-Encoding: chunked";
const ONE_BYTE = "1\r\nx\r\n";
const BETWEEN_MS = 20;

/** Clients that send a head and then a unit without end. */
export const clients = (name: string, count: number, flood: (world: World) => Flood): HostileInput => ({
  name,
  send: (world, signal) => floodServer(world.server.url, flood(world), { connections: count, signal }),
});

/** A program in the sandbox that answers some clients so. The sandboxes of `local-process` have the ports of the host. */
const program = (name: string, flood: Flood, more: readonly string[] = []): HostileInput => ({
  name: `a program's ${name}`,
  async send(world, signal) {
    await using hostile = await floodingProgram(flood);
    const asking = { head: head("GET /", at(world, hostile.port, ...more)), unit: "", units: 0 };
    await floodServer(world.server.url, asking, { connections: 4, signal });
  },
});

/** Whole requests, one after the other. */
export const posts = (
  name: string,
  path: string,
  sent: string | ((world: World) => string | Uint8Array),
  more: Readonly<Record<string, string>> = {},
): HostileInput => ({
  name,
  async send(world, signal) {
    const isOfSandbox = /^\/(process|filesystem)\./.test(path);
    const lines = isOfSandbox
      ? at(world, ENVD_PORT)
      : path.startsWith("/api/")
        ? at(world, FREE_PORT)
        : [KEY];
    const named = Object.fromEntries(lines.map((line) => line.split(": ") as [string, string]));
    const headers = { ...named, "content-type": "application/json", ...more };
    const body = typeof sent === "string" ? sent : sent(world);
    while (!signal.aborted) {
      // It may be refused before it is sent.
      await exchange(world.server.url, { method: "POST", path, headers, body }).catch(() => undefined);
      await new Promise((resolve) => setTimeout(resolve, BETWEEN_MS));
    }
  },
});

function head(what: string, headers: readonly string[]): string {
  return [`${what} HTTP/1.1`, "Host: localhost", ...headers, "", ""].join("\r\n");
}

function at({ sandbox, token }: World, port: number, ...more: readonly string[]): readonly string[] {
  const { sandboxId: id } = sandbox;
  return [`E2b-Sandbox-Id: ${id}`, `E2b-Sandbox-Port: ${port}`, `X-Access-Token: ${token}`, ...more];
}

function inChunk(bytes: string | Buffer, times = 1): Buffer {
  const content = Buffer.concat(Array.from({ length: times }, () => Buffer.from(bytes as string, "latin1")));
  return Buffer.concat([Buffer.from(`${content.length.toString(16)}\r\n`), content, Buffer.from("\r\n")]);
}

function upload(world: World, type = "application/octet-stream"): string {
  return head("POST /files?path=/tmp/held", at(world, ENVD_PORT, CHUNKED, `Content-Type: ${type}`));
}

function knownUpload(world: World, bytes: number): string {
  const headers = [`Content-Length: ${bytes}`, "Content-Type: application/octet-stream"];
  return head("POST /files?path=/tmp/held", at(world, ENVD_PORT, ...headers));
}

const form = (name: string, unit: string, times: number, first = ""): HostileInput =>
  clients(`a form ${name}`, 4, (world) => ({
    head: upload(world, "multipart/form-data; boundary=b") + (first && inChunk(first).toString("latin1")),
    unit: inChunk(unit, times),
  }));

const rpc = (name: string, method: string, codec: "json" | "proto", flood: Flood): HostileInput =>
  clients(name, 4, (world) => {
    const headers = at(world, ENVD_PORT, CHUNKED, `Content-Type: application/connect+${codec}`);
    const before = head(`POST /process.Process/${method}`, [...headers, "Connect-Protocol-Version: 1"]);
    return { ...flood, head: Buffer.concat([Buffer.from(before), Buffer.from(flood.head ?? "")]) };
  });

function frame(opcode: number, payload: string): Buffer {
  return Buffer.concat([Buffer.from([opcode, 0x80 | payload.length, 0, 0, 0, 0]), Buffer.from(payload)]);
}

export const webSocket = (name: string, path: (world: World) => string, flood: Flood): HostileInput =>
  clients(name, 4, (world) => {
    const key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==";
    const upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", key];
    const isTerminal = path(world).startsWith("/v1/");
    const who = isTerminal ? [`Authorization: Bearer ${API_KEY}`] : at(world, FREE_PORT);
    const before = head(`GET ${path(world)}`, [...upgrade, ...who]);
    return { ...flood, head: Buffer.concat([Buffer.from(before), Buffer.from(flood.head ?? "")]) };
  });

export const shell = (): string => "/ws";
const terminal = ({ sandbox }: World): string => `/v1/sandboxes/${sandbox.sandboxId}/sessions/held`;
const unauthorized = head("POST /v2/sandboxes", [CHUNKED]);
const chunkedAnswer = `HTTP/1.1 200 OK\r\n${CHUNKED}\r\n\r\n`;
const part = (field: string): string =>
  `--b\r\nContent-Disposition: form-data; name="${field}"; filename="x"\r\n\r\n\r\n`;
const keys = (count: number): string => Array.from({ length: count }, (_, key) => `"k${key}":1`).join(",");

/** The header of an empty file in a tar archive, which is all of it. */
function emptyFile(): Buffer {
  const header = Buffer.alloc(512);
  header.write("x");
  header.write("0000644\0".concat("0001750\0", "0001750\0", "00000000000\0", "00000000000\0"), 100);
  header.write("        0", 148);
  header.write("ustar\x0000", 257);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return header;
}

/** Everything that is known to cost a parser much for each byte. */
export const HOSTILE_INPUTS: readonly HostileInput[] = [
  clients("a refused body in chunks of a byte", 8, () => ({ head: unauthorized, unit: ONE_BYTE })),
  clients("extensions of chunks", 8, () => ({ head: unauthorized, unit: `1;${"a".repeat(200)}\r\nx\r\n` })),
  clients("trailers", 8, () => ({ head: `${unauthorized}0\r\n`, unit: "a:\r\n" })),
  clients("headers", 8, () => ({ head: "GET /health HTTP/1.1\r\nHost: a\r\n", unit: "a:\r\n" })),
  clients("requests with many headers", 8, () => ({
    unit: head("GET /health", Array<string>(1900).fill("a:")),
  })),
  clients("pipelined requests", 8, () => ({ unit: head("GET /health", []) })),
  clients("pipelined requests that are refused", 8, () => ({ unit: head("GET /sandboxes", []) })),
  clients("pipelined requests with chunks", 8, () => ({ unit: `${unauthorized}0\r\n\r\n` })),
  clients("a creation in chunks of a byte", 8, () => ({
    head: head("POST /v2/sandboxes", [KEY, CHUNKED]),
    unit: "1\r\n \r\n",
    units: 900_000,
  })),
  clients("an upload in chunks of a byte", 8, (world) => ({ head: upload(world), unit: ONE_BYTE })),
  clients("large uploads", 8, (world) => ({ head: upload(world), unit: inChunk("x", 65_536) })),
  clients("large uploads of known length", 8, (world) => ({
    head: knownUpload(world, 2 ** 40),
    unit: "x".repeat(65_536),
  })),
  clients("pipelined requests behind uploads of known length", 8, (world) => ({
    head: knownUpload(world, 300_000) + "x".repeat(300_000),
    unit: head("GET /health", []),
  })),
  form("of empty parts", part("file"), 200),
  form("of skipped parts", part("other"), 200),
  form("with headers without an end", `--b\r\n${"a:\r\n".repeat(1000)}`, 4),
  form("of halves of boundaries", "\r\n--", 4000, part("file").slice(0, -2)),
  rpc("empty messages of an input", "StreamInput", "proto", { unit: inChunk(Buffer.alloc(5), 8000) }),
  rpc("JSON messages of an input", "StreamInput", "json", { unit: inChunk(packFrame("{}"), 8000) }),
  rpc("JSON messages of an input in chunks of a byte", "StreamInput", "json", {
    unit: Buffer.concat([...packFrame("{}")].map((byte) => inChunk(Buffer.of(byte)))),
  }),
  rpc("a long message in chunks of a byte", "Start", "json", {
    head: inChunk(Buffer.from([0, 0, 0xf0, 0, 0])),
    unit: ONE_BYTE,
  }),
  posts("RPCs of many values", "/process.Process/SendInput", `{"a":[${"[],".repeat(2_000_000)}[]]}`),
  posts("RPCs of many fields", "/process.Process/SendInput", `{${keys(500_000)}}`),
  posts("RPCs of deep JSON", "/process.Process/SendInput", `{"process":${"[".repeat(5_000_000)}`),
  posts("creations with unknown fields", "/v2/sandboxes", `{${keys(9_000)}}`),
  posts("creations with metadata", "/v2/sandboxes", `{"templateID":"none","metadata":{${keys(9_000)}}}`),
  program("answer in chunks of a byte", { head: chunkedAnswer, unit: ONE_BYTE }),
  program("trailers", { head: `${chunkedAnswer}0\r\n`, unit: "a:\r\n" }),
  program("interim answers", { unit: "HTTP/1.1 100 \r\n\r\n" }),
  program("headers", { head: "HTTP/1.1 200 OK\r\n", unit: "a:\r\n" }),
  program("answers with many headers", {
    unit: `HTTP/1.1 200 OK\r\nContent-Length: 0\r\n${"a:\r\n".repeat(3900)}\r\n`,
  }),
  program("frames", { head: "HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n", unit: "\x82\x01x" }, [
    "Connection: Upgrade",
    "Upgrade: websocket",
  ]),
  clients("archives of many small entries", 4, ({ sandbox }) => ({
    head: Buffer.concat([
      Buffer.from(
        head(`POST /v1/sandboxes/${sandbox.sandboxId}/files/import`, [
          `Authorization: Bearer ${API_KEY}`,
          "Content-Type: multipart/form-data; boundary=b",
          CHUNKED,
        ]),
      ),
      inChunk(
        `${part("dest").replace('; filename="x"', "").slice(0, -2)}/tmp\r\n${part("tarball").slice(0, -2)}`,
      ),
    ]),
    unit: inChunk(emptyFile(), 100),
  })),
  webSocket("messages of a byte to the shell", shell, { unit: frame(0x81, "x") }),
  webSocket("pings to the shell", shell, { unit: frame(0x89, "") }),
  webSocket("fragments to the shell", shell, { head: frame(1, "x"), unit: frame(0, "x") }),
  webSocket("requests to the shell", shell, { unit: frame(0x81, '{"type":"request","id":"1","path":"/"}') }),
  webSocket("input of a byte to a terminal", terminal, { unit: frame(0x82, "\x01x") }),
  webSocket("pings to a terminal", terminal, { unit: frame(0x89, "") }),
  webSocket("resizes of a terminal", terminal, { unit: frame(0x82, "\x03\x00\x50\x00\x20") }),
];
