import { join } from "node:path";
import { startBareKernel } from "./bare-kernel.js";
import type { Benchmark } from "./benchmark.js";

const BYTES = 100_000_000;
const CODE_PORT = 49999;

/** A lot of output of one cell, from the request to the last line of its answer, and what it costs the server. */
export const codeOutput: Benchmark = async (server) => {
  const sandbox = await server.createSandbox();
  const execute = async (code: string): Promise<void> => {
    const { body } = await server.request(
      {
        method: "POST",
        path: "/execute",
        headers: { ...sandbox.headers(CODE_PORT), "content-type": "application/json" },
        body: JSON.stringify({ code }),
      },
      200,
    );
    if (body.length < BYTES) throw new Error(`${body.length} bytes of an answer with ${BYTES} in it`);
  };
  const kernel = await startBareKernel(join(server.scratch, "bare-kernel"));
  const print = `print("x" * ${BYTES})`;
  const show = `from IPython.display import display; display({"x/y": "x" * ${BYTES}}, raw=True)`;
  const measured = { bytes: BYTES, watched: server.process };
  return {
    comparisons: [
      {
        title: "code-output: 100 MB that one cell prints",
        floor: {
          label: "straight over ZMQ from a kernel of the same Python",
          bytes: BYTES,
          once: () => kernel.ask(print),
        },
        contenders: [{ label: "POST /execute", ...measured, once: () => execute(print) }],
      },
      {
        title: "code-output: 100 MB in one displayed value",
        floor: {
          label: "straight over ZMQ from a kernel of the same Python",
          bytes: BYTES,
          once: () => kernel.ask(show),
        },
        contenders: [{ label: "POST /execute", ...measured, once: () => execute(show) }],
      },
    ],
    async close() {
      await kernel.end();
      await server.killSandbox(sandbox);
    },
  };
};
