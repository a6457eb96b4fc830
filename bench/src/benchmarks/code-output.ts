import { join } from "node:path";
import { startBareKernel } from "../kit/bare-kernel.js";
import { BenchedServer } from "../kit/benched-server.js";
import type { Benchmark, Comparison, Contender } from "../kit/benchmark.js";
import { DrainingClient } from "../kit/draining-client.js";
import { startProgramOnPort } from "../kit/program-on-port.js";
import { WatchedProcess } from "../kit/watched-process.js";

/** Size of the output, unless the benchmark's limit is smaller. */
const MOST_BYTES = 100_000_000;
const CODE_PORT = 49999;
const LAST_LINE = '{"type": "end_of_execution"}\n';

/**
 * Large output of one cell: time from the request to the last line of the answer, and the server's processor time.
 */
export const codeOutput: Benchmark = async (server, { backend, largeBytes }) => {
  const payloadBytes = Math.min(MOST_BYTES, largeBytes);
  const withZmtp = await BenchedServer.start(backend, { settings: { jupyter: { transport: "zmtp" } } });
  const kernel = await startBareKernel(join(server.scratch, "bare-kernel"));
  const carrier = await startProgramOnPort(new URL("../kit/carry-server.js", import.meta.url));
  const clients = {
    carrier: new DrainingClient(carrier.port),
    server: new DrainingClient(portOf(server)),
    withZmtp: new DrainingClient(portOf(withZmtp)),
  };
  const run = await executor(server, clients.server);
  const runWithZmtp = await executor(withZmtp, clients.withZmtp);
  // The cell prints a string that exists already, so that its creation is not measured. On a virtual machine whose
  // host takes free memory back, the pages of 100 MB alone take between 60 and 380 ms.
  const made = `text = "x" * ${payloadBytes}`;
  await kernel.ask(made);
  for (const start of [run, runWithZmtp]) await start(made, 0);

  const carry = async (): Promise<void> => {
    const { bytes } = await clients.carrier.exchange([`GET /${payloadBytes} HTTP/1.1`]);
    if (bytes !== payloadBytes) throw new Error(`${bytes} bytes`);
  };
  const megabytes = Math.round(payloadBytes / 1e6);
  const comparison = (title: string, code: string): Comparison => {
    const contender = (label: string, once: Contender["once"], watched?: WatchedProcess): Contender => ({
      label,
      bytes: payloadBytes,
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
        contender("POST /execute", () => run(code, payloadBytes), server.process),
        contender("POST /execute, transport zmtp", () => runWithZmtp(code, payloadBytes), withZmtp.process),
      ],
    };
  };
  return {
    comparisons: [
      comparison(`${megabytes} MB that one cell prints`, "print(text)"),
      comparison(`${megabytes} MB that one cell makes and prints`, `print("x" * ${payloadBytes})`),
      comparison(
        `${megabytes} MB in one displayed value`,
        'from IPython.display import display; display({"x/y": text}, raw=True)',
      ),
    ],
    async close() {
      for (const client of Object.values(clients)) client.close();
      await carrier.end();
      await kernel.end();
      await withZmtp[Symbol.asyncDispose]();
    },
  };
};

function portOf({ url }: BenchedServer): number {
  return Number(new URL(url).port);
}

/** Runs code with at least so many bytes of output in a sandbox of the server. */
async function executor(
  server: BenchedServer,
  client: DrainingClient,
): Promise<(code: string, outputBytes: number) => Promise<void>> {
  const sandbox = await server.createSandbox();
  const headers = Object.entries(sandbox.headers(CODE_PORT)).map(([name, value]) => `${name}: ${value}`);
  const head = ["POST /execute HTTP/1.1", "content-type: application/json", ...headers];
  return async (code, outputBytes) => {
    const { bytes, end } = await client.exchange(head, JSON.stringify({ code }));
    if (bytes < outputBytes || !end.includes(LAST_LINE))
      throw new Error(`${bytes} bytes of an answer with ${outputBytes} in it`);
  };
}
