import { BenchedServer } from "../kit/benched-server.js";
import type { Benchmark } from "../kit/benchmark.js";
import { spawnToEnd } from "../kit/spawn-to-end.js";
import { V1_SETTINGS, V1Client } from "../kit/v1-client.js";

/** Size of the log, unless the benchmark's limit is smaller. */
const MOST_BYTES = 64 * 2 ** 20;
const PAGES = [256 * 1024, 4 * 2 ** 20];

/** The log of a durable command, page by page as text. */
export const v1Log: Benchmark = async (_server, { backend, largeBytes }) => {
  const bytes = Math.min(MOST_BYTES, largeBytes);
  const server = await BenchedServer.start(backend, { settings: V1_SETTINGS });
  const client = new V1Client(server, await server.createSandbox());
  const script = `head -c ${bytes} /dev/zero | tr '\\0' x`;
  const id = await client.start(["/bin/sh", "-c", script]);
  await client.follow(id);
  const read = async (limitBytes: number): Promise<void> => {
    const length = await client.readPages(id, limitBytes);
    if (length !== bytes) throw new Error(`${length} bytes of a log of ${bytes}`);
  };
  return {
    comparisons: [
      {
        title: `v1-log: ${bytes / 2 ** 20} MiB of a log, page by page`,
        floor: {
          label: "the same command through a pipe",
          bytes,
          once: () => spawnToEnd("/bin/sh", ["-c", script]),
        },
        contenders: PAGES.map((limit) => ({
          label: `pages of ${limit / 1024} KiB`,
          bytes,
          watched: server.process,
          once: () => read(limit),
        })),
      },
    ],
    close: () => server[Symbol.asyncDispose](),
  };
};
