import { packFrame } from "../harness/connect-frames.js";
import type { Benchmark } from "./benchmark.js";
import { spawnToEnd } from "./spawn-to-end.js";

const BYTES = 32 * 2 ** 20;
const PROGRAM = "head";
const ARGS = ["-c", String(BYTES), "/dev/zero"];

/** What a command writes, from its pipe to a client; with the output log as it is by default. */
export const stdout: Benchmark = async (server) => {
  const sandbox = await server.createSandbox();
  const start = async (codec: "json" | "proto", message: string): Promise<void> => {
    const { body } = await server.request(
      {
        method: "POST",
        path: "/process.Process/Start",
        headers: {
          ...sandbox.headers(49983),
          "content-type": `application/connect+${codec}`,
          "connect-protocol-version": "1",
        },
        body: packFrame(message),
      },
      200,
    );
    const leastBytes = codec === "json" ? (BYTES / 3) * 4 : BYTES;
    if (body.length < leastBytes) throw new Error(`${body.length} bytes of an answer with ${BYTES} in it`);
  };
  const json = JSON.stringify({ process: { cmd: PROGRAM, args: ARGS }, stdin: false });
  return {
    comparisons: [
      {
        title: `stdout: ${BYTES / 2 ** 20} MiB of a command's output`,
        floor: { label: "the pipe of a child process", bytes: BYTES, once: () => spawnToEnd(PROGRAM, ARGS) },
        contenders: [
          { label: "process.Process/Start as JSON", bytes: BYTES, once: () => start("json", json) },
          {
            label: "process.Process/Start as protobuf",
            bytes: BYTES,
            once: () => start("proto", protobuf()),
          },
        ],
      },
    ],
    close: () => server.killSandbox(sandbox),
  };
};

/** The StartRequest as protobuf: process (1) with cmd (1) and args (2), and stdin (4) false. All of it is ASCII. */
function protobuf(): string {
  const field = (number: number, text: string): string =>
    String.fromCharCode(number * 8 + 2, text.length) + text;
  const config = field(1, PROGRAM) + ARGS.map((argument) => field(2, argument)).join("");
  return `${field(1, config)}\u0020\0`;
}
