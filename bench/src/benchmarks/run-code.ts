import { mkdtemp } from "node:fs/promises";
import { join } from "node:path";
import { WARM } from "../kit/benched-server.js";
import type { BenchedSandbox } from "../kit/server-client.js";
import { startBareKernel } from "../kit/bare-kernel.js";
import type { Benchmark, Run } from "../kit/benchmark.js";

const CODE_PORT = 49999;

/**
 * Time from the request to the last line of the answer, for one cell: in a running kernel, and as the first cell of
 * a sandbox, with each way to start kernels sooner.
 */
export const runCode: Benchmark = async (server) => {
  const post = async (sandbox: BenchedSandbox, path: string, body: object): Promise<string> => {
    const headers = { ...sandbox.headers(CODE_PORT), "content-type": "application/json" };
    return (await server.request({ method: "POST", path, headers, body: JSON.stringify(body) }, 200)).text;
  };
  const execute = async (sandbox: BenchedSandbox, body: object): Promise<void> => {
    const text = await post(sandbox, "/execute", body);
    if (!text.includes('"end_of_execution"') || text.includes('"error"')) throw new Error(text);
  };
  const timed = async (run: () => Promise<unknown>): Promise<number> => {
    const startMs = performance.now();
    await run();
    return performance.now() - startMs;
  };
  const sandbox = await server.createSandbox();
  const withZygote = await server.createSandbox("zygote");
  await execute(withZygote, { code: "1+1" });
  await server.untilThere("a zygote", "coppice_jupyter_zygotes");
  const kernel = await startBareKernel(join(server.scratch, "bare-kernel"));

  const startPlain = async (): Promise<Run> => {
    const home = await mkdtemp(join(server.scratch, "plain-kernel-"));
    const startMs = performance.now();
    const plain = await startBareKernel(home);
    await plain.ask("1+1");
    return { tookMs: performance.now() - startMs, undo: () => plain.end() };
  };
  const firstCell = async (): Promise<Run> => {
    const fresh = await server.createSandbox();
    const tookMs = await timed(() => execute(fresh, { code: "1+1" }));
    return { tookMs, undo: () => server.killSandbox(fresh) };
  };
  const forkedCell = async (): Promise<Run> => {
    const startMs = performance.now();
    const { id } = JSON.parse(await post(withZygote, "/contexts", {})) as { readonly id: string };
    await execute(withZygote, { code: "1+1", context_id: id });
    const tookMs = performance.now() - startMs;
    const headers = withZygote.headers(CODE_PORT);
    const undo = (): Promise<unknown> =>
      server.request({ method: "DELETE", path: `/contexts/${id}`, headers }, 200);
    return { tookMs, undo: () => undo().then(() => undefined) };
  };
  const warmCell = async (isCreationTimed: boolean): Promise<Run> => {
    await server.untilThere("a sandbox waits in the pool", WARM);
    let warm: BenchedSandbox | undefined;
    const createMs = await timed(async () => (warm = await server.createSandbox("warm")));
    if (warm === undefined) throw new Error("no sandbox");
    const taken = warm;
    const cellMs = await timed(() => execute(taken, { code: "1+1" }));
    const tookMs = isCreationTimed ? createMs + cellMs : cellMs;
    return { tookMs, undo: () => server.killSandbox(taken) };
  };
  // The first miss fills the pool.
  await server.killSandbox(await server.createSandbox("warm"));

  return {
    comparisons: [
      {
        title: "run-code: a cell, from the request to the end of its answer",
        floor: {
          label: "1+1 straight over ZMQ to a kernel of the same Python",
          once: () => kernel.ask("1+1"),
        },
        contenders: [
          { label: "POST /execute 1+1", once: () => execute(sandbox, { code: "1+1" }) },
          {
            label: "POST /execute 1+1 with env_vars",
            once: () => execute(sandbox, { code: "1+1", env_vars: { GIVEN: "1" } }),
          },
          { label: "POST /execute print('x')", once: () => execute(sandbox, { code: "print('x')" }) },
        ],
      },
      {
        title: "run-code: a first cell",
        floor: {
          label: "a plain ipykernel and its client, from their start to the end of 1+1",
          once: startPlain,
        },
        contenders: [
          { label: "POST /execute in a new sandbox", once: firstCell },
          { label: "POST /contexts, POST /execute, forked from the sandbox's zygote", once: forkedCell },
          { label: "POST /execute in a sandbox of a warm pool", once: () => warmCell(false) },
          { label: "POST /v2/sandboxes, POST /execute, with a warm pool", once: () => warmCell(true) },
        ],
      },
    ],
    async close() {
      await kernel.end();
      await server.killSandbox(withZygote);
      await server.killSandbox(sandbox);
    },
  };
};
