import { parseArgs } from "node:util";
import { API_KEY } from "@coppice/test/harness/server/api-key.js";
import type { BackendName } from "@coppice/test/harness/server/start-full-server.js";

export const BACKENDS: readonly BackendName[] = ["local-process", "linux-namespaces", "jail-freebsd"];
/** Name of what rows are recorded against without a peer. */
export const SAME_RUN = "same-run";
export const DEFAULTS = { seconds: 3, mib: 1024, sandboxes: 200, servers: 10, connections: 10_000 } as const;

/** Names that can be asked for: benchmarks, and those with rows that are measured beside a peer. */
export interface KnownNames {
  readonly benchmarks: readonly string[];
  readonly rows: readonly string[];
}

/** Parses what a run of benchmarks is asked for. @returns undefined when it makes no sense. */
export function parseAsked(args: readonly string[], known: KnownNames) {
  try {
    const { positionals: asked, values } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        "seconds": { type: "string", default: String(DEFAULTS.seconds) },
        "backend": { type: "string", default: BACKENDS[0] ?? "" },
        "mib": { type: "string", default: String(DEFAULTS.mib) },
        "sandboxes": { type: "string", default: String(DEFAULTS.sandboxes) },
        "servers": { type: "string", default: String(DEFAULTS.servers) },
        "connections": { type: "string", default: String(DEFAULTS.connections) },
        "peer": { type: "string" },
        "peer-key": { type: "string", default: API_KEY },
        "record": { type: "string" },
      },
    });
    const seconds = Number(values.seconds);
    const { peer, record } = values;
    const names = peer === undefined ? known.benchmarks : known.rows;
    const backend = BACKENDS.find((name) => name === values.backend);
    const largeBytes = Number(values.mib) * 2 ** 20;
    const sandboxes = Number(values.sandboxes);
    const servers = Number(values.servers);
    const connections = Number(values.connections);
    const areSane = [largeBytes, sandboxes, servers, connections].every(
      (number) => Number.isInteger(number) && number > 0,
    );
    const areKnown = asked.length > 0 && asked.every((name) => names.includes(name));
    const isNamed = peer !== undefined || record === undefined || record === SAME_RUN;
    const isSane =
      seconds > 0 && areSane && areKnown && isNamed && (peer === undefined || URL.canParse(peer));
    if (!isSane || backend === undefined) return undefined;
    const sizes = { seconds, largeBytes, sandboxes, servers, connections };
    return { names: asked, backend, ...sizes, peer, peerKey: values["peer-key"], record };
  } catch {
    return undefined;
  }
}
