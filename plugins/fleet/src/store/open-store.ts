import { readFileSync } from "node:fs";
import type { Clock } from "@coppice/core";
import { EtcdClient } from "./etcd/etcd-client.js";
import { EtcdStore } from "./etcd/etcd-store.js";
import type { FleetConfig } from "../fleet-config.js";
import { SqliteStore } from "./sqlite/sqlite-store.js";
import type { FleetStore } from "./fleet-store.js";

const POLL_MS = 50;
const KEPT_REVISIONS = 10_000;
/** etcd tells the progress of a silent watch every ten minutes. */
const WATCH_SILENCE_MS = 15 * 60_000;

/** The store that the configuration names. @throws Error that names a file which cannot be used. */
export function openStore({ etcd, file }: FleetConfig, clock: Clock): FleetStore {
  if (etcd === undefined) {
    if (file === undefined) throw new Error("fleet.etcd or fleet.file is missing");
    return new SqliteStore({ path: file, clock, pollMs: POLL_MS, keptRevisions: KEPT_REVISIONS });
  }
  return new EtcdStore({ client: etcdClient(etcd), prefix: etcd.prefix, watchSilenceMs: WATCH_SILENCE_MS });
}

function etcdClient({ endpoints, user, password, ca, cert, key, timeout }: NonNullable<FleetConfig["etcd"]>) {
  return new EtcdClient({
    endpoints,
    login: user === undefined ? undefined : { user, password: password ?? "" },
    tls: {
      ...(ca !== undefined && { ca: readFileSync(ca, "utf8") }),
      ...(cert !== undefined && { cert: readFileSync(cert, "utf8") }),
      ...(key !== undefined && { key: readFileSync(key, "utf8") }),
    },
    timeoutMs: timeout,
  });
}
