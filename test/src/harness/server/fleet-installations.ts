import { randomBytes } from "node:crypto";
import { freePort } from "@coppice/core/testing";
import { type Installation, type InstallationOptions, makeInstallation } from "./server-process.js";

export interface FleetInstallationsOptions extends InstallationOptions {
  readonly count: number;
  /** Settings of the plugin `fleet` that all have in common; its store among them. */
  readonly fleet: Readonly<Record<string, unknown>>;
}

/** Writes the configurations of servers that are one fleet, for processes of their own: `node0`, `node1`, … */
export async function makeFleetInstallations({
  count,
  fleet,
  config,
  plugins,
}: FleetInstallationsOptions): Promise<readonly Installation[]> {
  const secret = randomBytes(32).toString("hex");
  const made: Installation[] = [];
  for (let index = 0; index < count; index += 1) {
    const port = await freePort();
    const own = { node: `node${index}`, address: `http://127.0.0.1:${port}`, secret, ...fleet };
    const listener = { host: "127.0.0.1", port: 0 };
    made.push(
      await makeInstallation({
        config: {
          listeners: { api: listener, ops: listener, fleet: { host: "127.0.0.1", port } },
          ...config,
        },
        plugins: (directory) => ({ ...plugins?.(directory), fleet: own }),
      }),
    );
  }
  return made;
}
