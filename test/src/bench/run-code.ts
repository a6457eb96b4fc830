import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { PYTHON } from "../harness/python.js";
import type { Benchmark, Run } from "./benchmark.js";

const CODE_PORT = 49999;
const FLOOR = fileURLToPath(new URL("../../src/bench/kernel-floor.py", import.meta.url));

/** One cell, from the request to the last line of its answer, in a kernel that runs already. */
export const runCode: Benchmark = async (server) => {
  const sandbox = await server.createSandbox();
  const execute = async (code: string): Promise<void> => {
    const { text } = await server.request(
      {
        method: "POST",
        path: "/execute",
        headers: { ...sandbox.headers(CODE_PORT), "content-type": "application/json" },
        body: JSON.stringify({ code }),
      },
      200,
    );
    if (!text.includes('"end_of_execution"') || text.includes('"error"')) throw new Error(text);
  };
  const kernel = await startBareKernel(join(server.scratch, "bare-kernel"));
  return {
    comparisons: [
      {
        title: "run-code: a cell, from the request to the end of its answer",
        floor: {
          label: "1+1 straight over ZMQ to a kernel of the same Python",
          once: () => kernel.ask("1+1"),
        },
        contenders: [
          { label: "POST /execute 1+1", once: () => execute("1+1") },
          { label: "POST /execute print('x')", once: () => execute("print('x')") },
        ],
      },
    ],
    async close() {
      await kernel.end();
      await server.killSandbox(sandbox);
    },
  };
};

interface BareKernel {
  /** Runs a cell; the client beside the kernel holds the clock. */
  ask(code: string): Promise<Run>;
  end(): Promise<void>;
}

/** A plain ipykernel with the plainest client there is: one process of Python that reads cells and prints milliseconds. */
async function startBareKernel(home: string): Promise<BareKernel> {
  await mkdir(home);
  const child = spawn(PYTHON, [FLOOR], {
    env: { ...process.env, HOME: home, IPYTHONDIR: home, JUPYTER_RUNTIME_DIR: home },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const ended = once(child, "exit");
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const nextLine = async (): Promise<string> => {
    const { value, done } = await lines.next();
    if (done === true) throw new Error("the client of the bare kernel ended");
    return value;
  };
  await nextLine();
  return {
    async ask(code) {
      child.stdin.write(`${code}\n`);
      return { tookMs: Number(await nextLine()) };
    },
    async end() {
      child.stdin.end();
      await ended;
    },
  };
}
