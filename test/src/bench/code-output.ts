import { once } from "node:events";
import { Agent, request, type IncomingMessage } from "node:http";
import { join } from "node:path";
import { startBareKernel } from "./bare-kernel.js";
import { BenchedServer } from "./benched-server.js";
import type { Benchmark, Comparison, Contender } from "./benchmark.js";
import { startProgramOnPort } from "./program-on-port.js";
import { WatchedProcess } from "./watched-process.js";

const BYTES = 100_000_000;
const CODE_PORT = 49999;
const LAST_LINE = '{"type": "end_of_execution"}\n';

/** A lot of output of one cell, from the request to the last line of its answer, and what it costs the server. */
export const codeOutput: Benchmark = async (server, { backend }) => {
  const withZmtp = await BenchedServer.start(backend, { settings: { jupyter: { transport: "zmtp" } } });
  const kernel = await startBareKernel(join(server.scratch, "bare-kernel"));
  const carrier = await startProgramOnPort(new URL("./carry-server.js", import.meta.url));
  const agent = new Agent({ keepAlive: true });
  const run = await executor(server, agent);
  const runWithZmtp = await executor(withZmtp, agent);

  const carry = async (): Promise<void> => {
    const { bytes } = await drained(
      request({ hostname: "127.0.0.1", port: carrier.port, agent, path: `/${BYTES}` }).end(),
    );
    if (bytes !== BYTES) throw new Error(`${bytes} bytes`);
  };
  const comparison = (title: string, code: string): Comparison => {
    const contender = (label: string, once: Contender["once"], watched?: WatchedProcess): Contender => ({
      label,
      bytes: BYTES,
      once,
      ...(watched && { watched }),
    });
    return {
      title: `code-output: ${title}`,
      floor: contender("straight over ZMQ from a kernel of the same Python", () => kernel.ask(code)),
      contenders: [
        contender(
          "as many bytes from a socket to an HTTP answer of Node",
          carry,
          new WatchedProcess(carrier.pid),
        ),
        contender("POST /execute", () => run(code), server.process),
        contender("POST /execute, transport zmtp", () => runWithZmtp(code), withZmtp.process),
      ],
    };
  };
  return {
    comparisons: [
      comparison("100 MB that one cell prints", `print("x" * ${BYTES})`),
      comparison(
        "100 MB in one displayed value",
        `from IPython.display import display; display({"x/y": "x" * ${BYTES}}, raw=True)`,
      ),
    ],
    async close() {
      agent.destroy();
      await carrier.end();
      await kernel.end();
      await withZmtp[Symbol.asyncDispose]();
    },
  };
};

/** Runs code in a sandbox of that server. */
async function executor(server: BenchedServer, agent: Agent): Promise<(code: string) => Promise<void>> {
  const sandbox = await server.createSandbox();
  const { hostname, port } = new URL(server.url);
  const headers = { ...sandbox.headers(CODE_PORT), "content-type": "application/json" };
  return async (code) => {
    const outgoing = request({ hostname, port, agent, method: "POST", path: "/execute", headers });
    const { bytes, end } = await drained(outgoing.end(JSON.stringify({ code })));
    if (bytes < BYTES || end !== LAST_LINE)
      throw new Error(`${bytes} bytes of an answer with ${BYTES} in it`);
  };
}

/** Counts an answer without keeping it, so that the client takes as little of the machine as it can. */
async function drained(outgoing: ReturnType<typeof request>): Promise<{ bytes: number; end: string }> {
  const [answer] = (await once(outgoing, "response")) as [IncomingMessage];
  let bytes = 0;
  let last = Buffer.alloc(0);
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    const before = chunk.length < LAST_LINE.length ? last : Buffer.alloc(0);
    last = Buffer.concat([before, chunk.subarray(-LAST_LINE.length)]).subarray(-LAST_LINE.length);
  }
  return { bytes, end: last.toString("latin1") };
}
