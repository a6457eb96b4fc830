import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { WARM } from "../kit/benched-server.js";
import type { Benchmark } from "../kit/benchmark.js";
import { createSteps } from "../kit/create-steps.js";
import { spawnToEnd } from "../kit/spawn-to-end.js";

const AT_ONCE = 8;

/**
 * Time from the request for a sandbox to its answer, to the end of its first command, and to the end of its
 * removal.
 */
export const create: Benchmark = async (server, options) => {
  const readings = await createSteps(options);
  const createOnce = async () => {
    const sandbox = await server.createSandbox();
    return { undo: () => server.killSandbox(sandbox) };
  };
  const createAndRun = async () => {
    const sandbox = await server.createSandbox();
    await server.run(sandbox, "true");
    return { undo: () => server.killSandbox(sandbox) };
  };
  const killOnce = async () => {
    const sandbox = await server.createSandbox();
    const startMs = performance.now();
    await server.killSandbox(sandbox);
    return { tookMs: performance.now() - startMs };
  };
  // The first miss fills the pool.
  await server.killSandbox(await server.createSandbox("warm"));
  const takeWarm = async () => {
    await server.untilThere("a sandbox waits in the pool", WARM);
    const startMs = performance.now();
    const sandbox = await server.createSandbox("warm");
    return { tookMs: performance.now() - startMs, undo: () => server.killSandbox(sandbox) };
  };
  const makeDirectory = async () => {
    const directory = await mkdtemp(join(server.scratch, "floor-"));
    await spawnToEnd("true");
    return { undo: () => rm(directory, { recursive: true }) };
  };
  return {
    readings,
    comparisons: [
      {
        title: "create: a sandbox, from the request to the answer",
        floor: { label: "mkdtemp and spawn('true') in one process", once: makeDirectory },
        contenders: [
          { label: "POST /v2/sandboxes", once: createOnce },
          { label: "POST /v2/sandboxes", once: createOnce, atOnce: AT_ONCE },
          { label: "POST /v2/sandboxes, from a pool", once: takeWarm },
          { label: "POST /v2/sandboxes, POST /commands true", once: createAndRun },
          { label: "DELETE /sandboxes/{id}", once: killOnce },
        ],
      },
    ],
    close: async () => undefined,
  };
};
