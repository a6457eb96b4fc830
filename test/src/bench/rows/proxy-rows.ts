import { startNginxInside } from "../kit/nginx-inside.js";
import { RepeatingClient } from "../kit/repeating-client.js";
import { ITSELF, type ServerClient } from "../kit/server-client.js";
import { summarize } from "../report/statistics.js";
import type { Row } from "./row.js";

const AT_ONCE = 16;

/** Small requests on kept connections to an nginx in a sandbox. A peer without sandboxes passes them to one of its own. */
export const proxyRows: readonly Row[] = [
  {
    label: "proxied request, one at a time",
    unit: "ms",
    prepare: (server, { seconds }) =>
      proxyRow(server, async (client) => summarize(await repeated(client, seconds)).p50),
  },
  {
    label: `proxied requests, ${AT_ONCE} at a time`,
    unit: "per s",
    prepare: (server, { seconds }) =>
      proxyRow(server, async (client) => {
        const startMs = performance.now();
        const all = Array.from({ length: AT_ONCE }, () => repeated(client, seconds));
        return ((await Promise.all(all)).flat().length * 1000) / (performance.now() - startMs);
      }),
  },
];

async function proxyRow(server: ServerClient, measure: (client: RepeatingClient) => Promise<number>) {
  const sandbox = await server.createSandbox();
  const client =
    sandbox === ITSELF
      ? new RepeatingClient(Number(new URL(server.url).port), "localhost")
      : await startNginxInside(server, sandbox);
  return {
    measure: () => measure(client),
    async close() {
      client.close();
      await server.killSandbox(sandbox);
    },
  };
}

/** @returns how long each request took, one after the other. */
async function repeated(client: RepeatingClient, seconds: number): Promise<readonly number[]> {
  const tookMs: number[] = [];
  const endMs = performance.now() + seconds * 1000;
  do {
    const startMs = performance.now();
    await client.ask();
    tookMs.push(performance.now() - startMs);
  } while (performance.now() < endMs);
  return tookMs;
}
