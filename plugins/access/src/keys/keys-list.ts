import { parseArgs } from "node:util";
import type { VerbAction } from "@coppice/core";
import { KeyStore, type StoredKey } from "./key-store.js";

const HEADING = ["ID", "TENANT", "NAME", "KEY", "SCOPES", "STATE", "CREATED", "EXPIRES"];

export const keysList: VerbAction<unknown> = {
  usage: "[--tenant acme] [--json]",
  run({ args, clock, dataDir, print, printTable }) {
    const { values } = parseArgs({
      args: [...args],
      options: { tenant: { type: "string" }, json: { type: "boolean", default: false } },
    });
    using store = new KeyStore(dataDir());
    const keys = store
      .list()
      .filter(({ tenant }) => values.tenant === undefined || tenant === values.tenant)
      .map((key) => keyRow(key, clock.now()));
    const rows = keys.map((key) => Object.values(key));
    if (values.json) print(JSON.stringify(keys));
    else printTable(HEADING, rows);
    return 0;
  },
};

function keyRow(key: StoredKey, nowMs: number) {
  const isExpired = key.expiresAtMs !== undefined && key.expiresAtMs <= nowMs;
  return {
    id: key.id,
    tenant: key.tenant,
    name: key.name,
    key: `${key.hint}…`,
    scopes: key.scopes.join(","),
    state: key.revokedAtMs !== undefined ? "revoked" : isExpired ? "expired" : "in use",
    createdAt: new Date(key.createdAtMs).toISOString(),
    expiresAt: key.expiresAtMs === undefined ? "never" : new Date(key.expiresAtMs).toISOString(),
  };
}
