import { summarize } from "../report/statistics.js";
import type { Row } from "./row.js";

const MOST = 100;

/** Creations at the same moment. */
export const burstRows: readonly Row[] = [
  {
    label: `${MOST} creations at once, p99 to the end of the first command`,
    unit: "ms",
    async prepare(server, { sandboxes }) {
      // Shared state that the first sandbox creates does not count for any of them.
      await server.killSandbox(await server.createSandbox());
      return {
        async measure() {
          const startMs = performance.now();
          const created = await Promise.all(
            Array.from({ length: Math.min(MOST, sandboxes) }, async () => {
              const sandbox = await server.createSandbox();
              await server.run(sandbox, "true");
              return { sandbox, tookMs: performance.now() - startMs };
            }),
          );
          await Promise.all(created.map(({ sandbox }) => server.killSandbox(sandbox)));
          return summarize(created.map(({ tookMs }) => tookMs)).p99;
        },
        close: async () => undefined,
      };
    },
  },
];
