import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { TestServer } from "@coppice/core/testing";
import fleet from "@coppice/plugin-fleet";
import { freePort } from "@coppice/core/testing";
import { type CommandEnd, startCoppice } from "./coppice-command.js";
import { makeInstallation } from "./server-process.js";
import { type FullServerOptions, startFullServer } from "./start-full-server.js";

export interface Fleet extends AsyncDisposable {
  readonly servers: readonly TestServer[];
  /** Runs `coppice fleet <action> …` for this fleet. */
  coppice(action: string, ...words: readonly string[]): Promise<CommandEnd>;
  /** How many sandboxes each server has, by the fleet's record. */
  sandboxes(): Promise<readonly number[]>;
}

export interface FleetOptions extends Omit<FullServerOptions, "more"> {
  readonly count: number;
  /** Directory of the data of all: `node0` and so on; a temporary one for each when absent. */
  readonly dataDir?: string;
  /** Listeners beside `api` and `fleet`, with settings beside host and port. */
  readonly listeners?: Readonly<Record<string, object>>;
  /** Where their store is: `etcd` or `file`, as in the configuration. */
  readonly store: Readonly<Record<string, unknown>>;
}

/** Starts servers in this process that are one fleet. */
export async function startFleet({
  count,
  store,
  dataDir,
  listeners: further = {},
  server = {},
  ...options
}: FleetOptions): Promise<Fleet> {
  const secret = randomBytes(32).toString("hex");
  const servers: TestServer[] = [];
  const common = { address: "http://127.0.0.1:1", secret, ...store };
  const cli = await makeInstallation({ plugins: () => ({ fleet: common }) });
  const stop = async (): Promise<void> => {
    for (const one of servers.toReversed()) await one.stop();
    await cli.remove();
  };
  try {
    for (let index = 0; index < count; index += 1) {
      const port = await freePort();
      const listeners = {
        ...Object.fromEntries(
          Object.entries({ api: {}, ...further }).map(([name, own]) => [
            name,
            { host: "127.0.0.1", port: 0, ...own },
          ]),
        ),
        fleet: { host: "127.0.0.1", port },
      };
      const settings = { ...common, node: `node${index}`, address: `http://127.0.0.1:${port}` };
      servers.push(
        await startFullServer({
          ...options,
          server: { listeners, ...(dataDir && { dataDir: join(dataDir, settings.node) }), ...server },
          more: [[fleet, settings]],
        }),
      );
    }
  } catch (error) {
    await stop();
    throw error;
  }
  const coppice: Fleet["coppice"] = (action, ...words) =>
    startCoppice(["fleet", action, cli.configFile, ...words]).end;
  return {
    servers,
    coppice,
    async sandboxes() {
      const { stdout } = await coppice("status", "--json");
      const status = JSON.parse(stdout.toString()) as readonly { readonly sandboxes: number }[];
      return status.map(({ sandboxes }) => sandboxes);
    },
    [Symbol.asyncDispose]: stop,
  };
}
