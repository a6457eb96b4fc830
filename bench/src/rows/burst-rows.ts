import { summarize } from "../report/statistics.js";
import type { ServerClient } from "../kit/server-client.js";
import type { Row } from "./row.js";

const MOST = 100;
const WARM_UPS = 5;

/** Creations at the same moment. */
export const burstRows: readonly Row[] = [
  burstRow("", "base"),
  // Both servers have this template, and nothing keeps sandboxes of it ready.
  burstRow(", without a pool", "zygote"),
];

function burstRow(condition: string, template: string): Row {
  return {
    label: `${MOST} creations at once${condition}, p99 to the end of the first command`,
    unit: "ms",
    async prepare(server, { sandboxes }) {
      const burst = (): Promise<readonly number[]> => burstOf(server, template, Math.min(MOST, sandboxes));
      // They pay for shared state and for compilation, and a pool learns from them how many to keep ready.
      for (let count = 0; count < WARM_UPS; count += 1) await burst();
      return { measure: async () => summarize(await burst()).p99, close: async () => undefined };
    },
  };
}

/** Makes sandboxes at the same moment, and removes them. @returns when the first command of each had ended, in milliseconds. */
async function burstOf(server: ServerClient, template: string, count: number): Promise<readonly number[]> {
  const startMs = performance.now();
  const created = await Promise.all(
    Array.from({ length: count }, async () => {
      const sandbox = await server.createSandbox(template);
      await server.run(sandbox, "true");
      return { sandbox, tookMs: performance.now() - startMs };
    }),
  );
  await Promise.all(created.map(({ sandbox }) => server.killSandbox(sandbox)));
  return created.map(({ tookMs }) => tookMs);
}
