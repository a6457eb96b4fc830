import { availableParallelism } from "node:os";
import type { BenchedServer } from "../kit/benched-server.js";
import type { BenchedSandbox } from "../kit/server-client.js";
import type { Benchmark } from "../kit/benchmark.js";
import { memoryShareOf } from "../kit/memory-share.js";

const KERNELS = 300;
const KERNELS_PER_SECOND = 100;
/** No sandbox may have more than `jupyter.maxContexts`. */
const KERNELS_OF_SANDBOX = 60;
const MIB = 2 ** 20;

interface StartedKernel {
  readonly sandbox: BenchedSandbox;
  readonly id: string;
  readonly tookMs: number;
}

/** Cost of many live kernels, most of them forked: time until ready, time of a request, and memory. Linux only. */
export const manyKernels: Benchmark = async (server, { seconds }) => {
  const wanted = Math.max(2, Math.min(KERNELS, Math.round(seconds * KERNELS_PER_SECOND)));
  const sandboxes: BenchedSandbox[] = [];
  try {
    const before = server.process.residentBytes();
    const kernels: StartedKernel[] = [];
    while (kernels.length < wanted) {
      const sandbox = await server.createSandbox("zygote");
      sandboxes.push(sandbox);
      const count = Math.min(KERNELS_OF_SANDBOX, wanted - kernels.length);
      // The first kernel starts together with the zygote, from which the others are forked.
      kernels.push(await startKernel(server, sandbox));
      await server.untilThere("the zygote of a sandbox", "coppice_jupyter_zygotes", sandboxes.length);
      await inTurns(Array.from({ length: count - 1 }), async () => {
        kernels.push(await startKernel(server, sandbox));
      });
    }
    const asked: number[] = [];
    await inTurns(kernels, async ({ sandbox, id }) => {
      const startedMs = performance.now();
      const text = await server.askCode(sandbox, "/execute", { code: "1+1", context_id: id });
      if (!text.includes('"text": "2"')) throw new Error(text);
      asked.push(performance.now() - startedMs);
    });
    const alive = await server.metric("coppice_jupyter_kernels");
    const silent = await server.metric("coppice_jupyter_silent_kernels_total");
    let shareMiB = 0;
    for (const { id } of sandboxes) shareMiB += await memoryShareOf(id);
    const serverMiB = (server.process.residentBytes() - before) / MIB;
    const descriptors = server.process.descriptors();
    const started = kernels.map(({ tookMs }) => tookMs);
    const lines = [
      `many-kernels: ${kernels.length} kernels in ${sandboxes.length} sandboxes, ${availableParallelism()} started and asked at a time`,
      `  alive, and answered: ${alive}; ended for want of a heartbeat: ${silent}`,
      `  until one is ready: ${told(started)}`,
      `  the answer of one: ${told(asked)}`,
      `  processes of the sandboxes (PSS): ${(shareMiB / kernels.length).toFixed(1)} MiB each, ${shareMiB.toFixed(0)} MiB`,
      `  server (RSS): grown by ${serverMiB.toFixed(0)} MiB, ${((serverMiB * 1024) / kernels.length).toFixed(0)} KiB each; ${descriptors} descriptors`,
    ];
    return { notes: [lines.join("\n")], comparisons: [], close: () => killAll(server, sandboxes) };
  } catch (error) {
    await killAll(server, sandboxes);
    throw error;
  }
};

async function killAll(server: BenchedServer, sandboxes: readonly BenchedSandbox[]): Promise<void> {
  for (const sandbox of sandboxes) await server.killSandbox(sandbox);
}

async function startKernel(server: BenchedServer, sandbox: BenchedSandbox): Promise<StartedKernel> {
  const startedMs = performance.now();
  const { id } = JSON.parse(await server.askCode(sandbox, "/contexts", {})) as { readonly id: string };
  return { sandbox, id, tookMs: performance.now() - startedMs };
}

/** Calls `run` for every item, with as many calls at a time as there are processors. */
async function inTurns<T>(all: readonly T[], run: (one: T) => Promise<void>): Promise<void> {
  const left = [...all].values();
  const worker = async (): Promise<void> => {
    for (const one of left) await run(one);
  };
  await Promise.all(Array.from({ length: availableParallelism() }, worker));
}

function told(samples: readonly number[]): string {
  const sorted = samples.toSorted((a, b) => a - b);
  const at = (part: number): string =>
    `${(sorted[Math.floor(part * (sorted.length - 1))] ?? 0).toFixed(0)} ms`;
  return `${at(0.5)} in the middle, ${at(0.99)} of 99 %, ${at(1)} at most`;
}
