import { parseArgs } from "node:util";
import { DEFAULT_TENANT, duration, SandboxError, type VerbAction } from "@coppice/core";
import { isKeyScope, KEY_SCOPES, type KeyScope, KeyStore, type StoredKey, TENANT_NAME } from "./key-store.js";
import { REASONS } from "../reasons.js";

const MAX_NAME = 100;

export const keysCreate: VerbAction<unknown> = {
  usage: "[--tenant acme] [--name ci] [--scopes read,exec,admin] [--expires 90d]",
  run({ args, clock, dataDir, print }) {
    const { values } = parseArgs({
      args: [...args],
      options: {
        tenant: { type: "string", default: DEFAULT_TENANT },
        name: { type: "string" },
        scopes: { type: "string", default: "exec" },
        expires: { type: "string" },
      },
    });
    const { tenant, name, expires } = values;
    if (!TENANT_NAME.test(tenant)) throw invalid("--tenant is letters, digits, '.', '_' and '-'");
    if (name !== undefined && (!/^\S.*$/.test(name) || name.length > MAX_NAME))
      throw invalid(`--name is one line of at most ${MAX_NAME} characters`);
    using store = new KeyStore(dataDir());
    const nowMs = clock.now();
    const expiresAtMs = expires === undefined ? undefined : nowMs + parseDuration(expires);
    const scopes = parseScopes(values.scopes);
    const { key, stored } = store.create({ tenant, name, scopes, expiresAtMs }, nowMs);
    print(key);
    process.stderr.write(
      `key ${stored.id} '${stored.name}' of tenant '${tenant}' may ${scopes.join(", ")}` +
        `${expiresAtMs === undefined ? "" : ` until ${new Date(expiresAtMs).toISOString()}`}. It is not shown again.\n`,
    );
    return 0;
  },
};

function parseScopes(text: string): readonly KeyScope[] {
  const scopes = text.split(",").map((scope) => scope.trim());
  if (!scopes.every(isKeyScope)) throw invalid(`--scopes is a list of ${KEY_SCOPES.join(", ")}`);
  return scopes;
}

function parseDuration(text: string): number {
  const parsed = duration().safeParse(text);
  if (parsed.data === undefined || parsed.data <= 0) throw invalid("--expires is a length of time, as 90d");
  return parsed.data;
}

function invalid(message: string): SandboxError {
  return new SandboxError("usage_invalid", message);
}

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

/** Revokes a key: a running server refuses it from the next request on. */
export const keysRevoke: VerbAction<unknown> = {
  usage: "<id of the key>",
  run({ args, clock, dataDir, print }) {
    const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
    const [id, ...more] = positionals;
    if (id === undefined || more.length > 0) throw new SandboxError("usage_invalid", "name one key");
    using store = new KeyStore(dataDir());
    if (!store.revoke(id, clock.now()))
      throw new SandboxError(REASONS.key_not_found, `no key '${id}' is in use`);
    print(`key ${id} is revoked`);
    return 0;
  },
};
