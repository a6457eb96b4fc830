import { gzipSync } from "node:zlib";
import { type HostileInput, posts, shell, webSocket, type World } from "./hostile-inputs.js";

/** `http.messageLimit`, but for what surrounds the content. */
const RPC_BYTES = 4 * 1024 * 1024 - 1024;
/** `shell-sessions.maxBody`, but for what surrounds the content. */
const SHELL_BYTES = 8 * 1024 * 1024 - 1024;

const PROTO = { "content-type": "application/proto" };
const SEND_INPUT = "/process.Process/SendInput";

/** A field of protobuf that has bytes. */
function field(number: number, bytes: Uint8Array): Buffer {
  const head = [(number << 3) | 2];
  let left = bytes.length;
  for (; left > 127; left >>>= 7) head.push((left & 127) | 128);
  return Buffer.concat([Buffer.from([...head, left]), bytes]);
}

function repeated(unit: string | Buffer, bytes = RPC_BYTES): Buffer {
  return Buffer.alloc(Math.floor(bytes / unit.length) * unit.length, unit);
}

function enveloped(message: Uint8Array, flags = 0): Buffer {
  const head = Buffer.from([flags, 0, 0, 0, 0]);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

const proto = (name: string, path: string, message: Uint8Array): HostileInput =>
  posts(`binary RPCs of ${name}`, path, () => message, PROTO);

const start = (name: string, message: Uint8Array): HostileInput =>
  posts(`starts of ${name}`, "/process.Process/Start", () => enveloped(message), {
    "content-type": "application/connect+proto",
  });

const input = (name: string, base64: string): HostileInput =>
  posts(`inputs of ${name}`, SEND_INPUT, ({ pid }: World) =>
    JSON.stringify({ process: { pid }, input: { stdin: base64 } }),
  );

const writes = (name: string, content: string): HostileInput =>
  posts(`files of ${name}`, "/api/write", () => `{"path":"/tmp/held","content":"${content}"}`);

/** A selector of a process, and other things again and again. */
const manySelectors = repeated(field(1, Buffer.from([8, 1])));

function textFrame(payload: string): Buffer {
  const head = Buffer.from([0x81, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
  head.writeBigUInt64BE(BigInt(payload.length), 2);
  const masked = Buffer.from(payload, "latin1");
  for (let at = 0; at < masked.length; at += 1) masked[at]! ^= head[10 + (at % 4)]!;
  return Buffer.concat([head, masked]);
}

const request = (body: string): string =>
  `{"type":"request","id":"1","method":"POST","path":"/api/write","body":{"path":"/tmp/held","content":"${body}"}}`;

/** Messages that are as long as they may be, or have as much in them as they can. */
export const HOSTILE_MESSAGES: readonly HostileInput[] = [
  proto("many fields", SEND_INPUT, manySelectors),
  proto("many empty values", "/process.Process/SendSignal", repeated(field(1, Buffer.alloc(0)))),
  proto("many unknown fields", "/filesystem.Filesystem/ListDir", repeated(Buffer.from([0x78, 1]))),
  proto("many groups", "/filesystem.Filesystem/Stat", repeated(Buffer.from([0x7b, 0x7c]))),
  proto("deep groups", "/filesystem.Filesystem/Stat", repeated(Buffer.from([0x7b]))),
  proto(
    "long varints",
    "/filesystem.Filesystem/MakeDir",
    repeated(Buffer.from([0x78, ...Array<number>(9).fill(0xff), 1])),
  ),
  posts("compressed binary RPCs", SEND_INPUT, () => gzipSync(manySelectors), {
    ...PROTO,
    "content-encoding": "gzip",
  }),
  start("many arguments", field(1, repeated(field(2, Buffer.alloc(0))))),
  start("many variables", field(1, repeated(field(3, Buffer.alloc(0))))),
  start("a long argument", field(1, field(2, repeated("a")))),
  posts(
    "inputs in binary",
    SEND_INPUT,
    ({ pid }) =>
      Buffer.concat([
        field(1, Buffer.from([8, (pid & 127) | 128, ((pid >> 7) & 127) | 128, pid >> 14])),
        field(2, field(1, repeated("a"))),
      ]),
    PROTO,
  ),
  input("a megabyte", repeated("YWFh").toString()),
  input("a megabyte behind a line feed", `\\n${repeated("YWFh", RPC_BYTES - 2).toString()}`),
  input("much padding", repeated("YQ==").toString()),
  posts("a long tag in escapes", SEND_INPUT, () => `{"process":{"tag":"${repeated("\\u0101").toString()}"}}`),
  writes("a long text", repeated("a", SHELL_BYTES).toString()),
  writes("a long text in escapes", repeated("\\u0101", SHELL_BYTES).toString()),
  webSocket("a long message to the shell", shell, {
    unit: textFrame(request(repeated("a", SHELL_BYTES).toString())),
  }),
  webSocket("a long message of escapes to the shell", shell, {
    unit: textFrame(request(repeated("\\n", SHELL_BYTES).toString())),
  }),
];
