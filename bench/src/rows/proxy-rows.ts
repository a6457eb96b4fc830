import { startNginxInside } from "../kit/nginx-inside.js";
import { ratePerSecond, repeated } from "../report/repeated.js";
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
      proxyRow(server, async (client) => summarize(await repeated(() => client.ask(), seconds)).p50),
  },
  {
    label: `proxied requests, ${AT_ONCE} at a time`,
    unit: "per s",
    prepare: (server, { seconds }) =>
      proxyRow(server, (client) =>
        ratePerSecond(
          Array.from({ length: AT_ONCE }, () => () => client.ask()),
          seconds,
        ),
      ),
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
