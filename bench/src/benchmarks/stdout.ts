import { startHostAgent } from "@coppice/agent";
import { packFrame } from "@coppice/test/harness/clients/connect-frames.js";
import { BenchedServer } from "../kit/benched-server.js";
import type { Benchmark, Contender } from "../kit/benchmark.js";
import { spawnToEnd } from "../kit/spawn-to-end.js";

/** Size of the output, unless the benchmark's limit is smaller. */
const MOST_BYTES = 32 * 2 ** 20;
const PROGRAM = "head";
const CODECS = ["json", "proto"] as const;

type Codec = (typeof CODECS)[number];

/** Output of a command, from its pipe to a client, and the cost of keeping it in the output log. */
export const stdout: Benchmark = async (server, { backend, largeBytes }) => {
  const payloadBytes = Math.min(MOST_BYTES, largeBytes);
  const args = argsFor(payloadBytes);
  const agent = await startHostAgent();
  const unlogged = await BenchedServer.start(backend, {
    settings: { commands: { log: { enabled: false } } },
  });
  const start = await starter(server, payloadBytes);
  const startUnlogged = await starter(unlogged, payloadBytes);
  const contender = (label: string, once: Contender["once"]): Contender => ({
    label,
    bytes: payloadBytes,
    once,
  });
  const throughAgent = async (): Promise<void> => {
    const started = await agent.spawn({ path: PROGRAM, args, env: {}, cwd: "/", input: "none" });
    for await (const _ of started.output);
    await started.exit;
  };
  const size = `${payloadBytes / 2 ** 20} MiB of a command's output`;
  const name = { json: "JSON", proto: "protobuf" };
  return {
    comparisons: [
      {
        title: `stdout: ${size}`,
        floor: contender("the pipe of a child process", () => spawnToEnd(PROGRAM, args)),
        contenders: [
          contender("the pipe of the agent", throughAgent),
          ...CODECS.map((codec) => ({
            ...contender(`process.Process/Start as ${name[codec]}`, () => start(codec)),
            watched: server.process,
          })),
        ],
      },
      ...CODECS.map((codec) => ({
        title: `stdout: ${size} as ${name[codec]}, with the output log and without`,
        floor: { ...contender("without", () => startUnlogged(codec)), watched: unlogged.process },
        contenders: [{ ...contender("with", () => start(codec)), watched: server.process }],
      })),
    ],
    async close() {
      await agent.close();
      await unlogged[Symbol.asyncDispose]();
    },
  };
};

/** Runs a command that writes so many bytes in a sandbox of the server. */
async function starter(
  server: BenchedServer,
  payloadBytes: number,
): Promise<(codec: Codec) => Promise<void>> {
  const sandbox = await server.createSandbox();
  const args = argsFor(payloadBytes);
  const json = JSON.stringify({ process: { cmd: PROGRAM, args }, stdin: false });
  return async (codec) => {
    const { body } = await server.request(
      {
        method: "POST",
        path: "/process.Process/Start",
        headers: {
          ...sandbox.headers(49983),
          "content-type": `application/connect+${codec}`,
          "connect-protocol-version": "1",
        },
        body: packFrame(codec === "json" ? json : protobuf(args)),
      },
      200,
    );
    const leastBytes = codec === "json" ? (payloadBytes / 3) * 4 : payloadBytes;
    if (body.length < leastBytes)
      throw new Error(`${body.length} bytes of an answer with ${payloadBytes} in it`);
  };
}

function argsFor(payloadBytes: number): readonly string[] {
  return ["-c", String(payloadBytes), "/dev/zero"];
}

/** The StartRequest as protobuf: process (1) with cmd (1) and args (2), and stdin (4) false. All of it is ASCII. */
function protobuf(args: readonly string[]): string {
  const field = (number: number, text: string): string =>
    String.fromCharCode(number * 8 + 2, text.length) + text;
  const config = field(1, PROGRAM) + args.map((argument) => field(2, argument)).join("");
  return `${field(1, config)}\u0020\0`;
}
