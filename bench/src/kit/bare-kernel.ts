import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir } from "node:fs/promises";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { PYTHON } from "@coppice/test/harness/host/python.js";
import type { Run } from "./benchmark.js";

const FLOOR = fileURLToPath(new URL("../../src/kit/kernel-floor.py", import.meta.url));

export interface BareKernel {
  /** Runs a cell. The client beside the kernel measures the time. */
  ask(code: string): Promise<Run>;
  end(): Promise<void>;
}

/** A plain ipykernel with a minimal client: one Python process that reads cells and prints milliseconds. */
export async function startBareKernel(home: string): Promise<BareKernel> {
  await mkdir(home, { recursive: true });
  const child = spawn(PYTHON, [FLOOR], {
    env: { ...process.env, HOME: home, IPYTHONDIR: home, JUPYTER_RUNTIME_DIR: home },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const ended = once(child, "exit");
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const nextLine = async (): Promise<string> => {
    const { value, done } = await lines.next();
    if (done === true) {
      throw new Error(
        `the client of the bare kernel ended: COPPICE_PYTHON names a Python with ipykernel and jupyter_client, ` +
          `which ${PYTHON} may not be; \`npm run bench\` sets it`,
      );
    }
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
