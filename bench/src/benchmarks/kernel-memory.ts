import type { BenchedServer } from "../kit/benched-server.js";
import type { BenchedSandbox } from "../kit/server-client.js";
import type { Benchmark } from "../kit/benchmark.js";
import { memoryShareOf } from "../kit/memory-share.js";

const CODE_PORT = 49999;
const KERNELS = 16;
const KERNELS_PER_SECOND = 6;
const LOADED = [
  "import gc, numpy, pandas, matplotlib.pyplot as plt",
  "frame = pandas.DataFrame({'a': numpy.arange(1000), 'b': numpy.random.rand(1000)})",
  "gc.collect()",
  "None",
].join("\n");

/** Memory of kernels that have numpy, pandas and matplotlib loaded. Linux only. */
export const kernelMemory: Benchmark = async (server, { seconds }) => {
  const kernels = Math.max(2, Math.min(KERNELS, Math.round(seconds * KERNELS_PER_SECOND)));
  return {
    comparisons: [],
    readings: [
      {
        title: `kernel-memory: a share (PSS) of all processes of a sandbox for each of its ${kernels} kernels`,
        unit: "MiB",
        rows: [
          { label: "each started", samples: [await shareOfEach(server, "base", kernels)] },
          { label: "forked from a zygote", samples: [await shareOfEach(server, "zygote", kernels)] },
        ],
      },
    ],
    close: async () => undefined,
  };
};

async function shareOfEach(server: BenchedServer, template: string, kernels: number): Promise<number> {
  const sandbox = await server.createSandbox(template);
  try {
    if (template === "zygote") await warmZygote(server, sandbox);
    for (let started = 0; started < kernels; started += 1) {
      const { id } = JSON.parse(await server.askCode(sandbox, "/contexts", {})) as { readonly id: string };
      const text = await server.askCode(sandbox, "/execute", { code: LOADED, context_id: id });
      if (text.includes('"error"')) throw new Error(text);
    }
    return (await memoryShareOf(sandbox.id)) / kernels;
  } finally {
    await server.killSandbox(sandbox);
  }
}

/** The first kernel of a sandbox starts together with the zygote, and is not measured. */
async function warmZygote(server: BenchedServer, sandbox: BenchedSandbox): Promise<void> {
  const { id } = JSON.parse(await server.askCode(sandbox, "/contexts", {})) as { readonly id: string };
  await server.untilThere("a zygote", "coppice_jupyter_zygotes");
  await server.request(
    { method: "DELETE", path: `/contexts/${id}`, headers: sandbox.headers(CODE_PORT) },
    200,
  );
}
