import { packFrame } from "@coppice/test/harness/clients/connect-frames.js";
import { DrainingClient } from "../kit/draining-client.js";
import { ratePerSecond, repeated } from "../report/repeated.js";
import type { BenchedSandbox, ServerClient } from "../kit/server-client.js";
import { summarize } from "../report/statistics.js";
import type { Row } from "./row.js";

const ENVD_PORT = 49_983;
const AT_ONCE = 16;
const OUTPUT_BYTES = 400_000_000;
/** Of the event that tells of the end. */
const ENDED = '"exited":true';

/** Commands by `process.Process/Start`, as JSON. */
export const startRows: readonly Row[] = [
  {
    label: "Start of true, one at a time",
    unit: "ms",
    prepare: (server, { seconds }) =>
      startRow(
        server,
        1,
        async ([start]) => summarize(await repeated(async () => start?.("true"), seconds)).p50,
      ),
  },
  {
    label: `Start of true, ${AT_ONCE} at a time`,
    unit: "per s",
    prepare: (server, { seconds }) =>
      startRow(server, AT_ONCE, (starts) =>
        ratePerSecond(
          starts.map((start) => () => start("true")),
          seconds,
        ),
      ),
  },
];

/** Large output of a command. */
export const outputRows: readonly Row[] = [
  {
    label: `${OUTPUT_BYTES / 1e6} MB of stdout`,
    unit: "ms",
    async prepare(server, { largeBytes }) {
      const bytes = Math.min(OUTPUT_BYTES, largeBytes);
      return startRow(server, 1, async ([start]) => {
        const startMs = performance.now();
        await start?.("head", ["-c", String(bytes), "/dev/zero"]);
        return performance.now() - startMs;
      });
    },
  },
];

type Start = (cmd: string, args?: readonly string[]) => Promise<void>;

/** Measures with so many clients, each of which keeps its connection, and one sandbox. */
async function startRow(
  server: ServerClient,
  clients: number,
  measure: (starts: readonly Start[]) => Promise<number>,
) {
  const sandbox = await server.createSandbox();
  const draining = Array.from(
    { length: clients },
    () => new DrainingClient(Number(new URL(server.url).port)),
  );
  const starts = draining.map((client) => starter(client, sandbox));
  // The first pays for connections, caches and compilation.
  for (const start of starts) await start("true");
  return {
    measure: () => measure(starts),
    async close() {
      for (const client of draining) client.close();
      await server.killSandbox(sandbox);
    },
  };
}

function starter(client: DrainingClient, sandbox: BenchedSandbox): Start {
  const headers = {
    ...sandbox.headers(ENVD_PORT),
    "content-type": "application/connect+json",
    "connect-protocol-version": "1",
  };
  const head = [
    "POST /process.Process/Start HTTP/1.1",
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
  ];
  return async (cmd, args = []) => {
    const body = packFrame(JSON.stringify({ process: { cmd, args }, stdin: false }));
    const { end } = await client.exchange(head, body);
    if (!end.includes(ENDED)) throw new Error(`${cmd} did not end well: ${end}`);
  };
}
