import { parseArgs } from "node:util";
import { DEFAULT_TENANT, duration, SandboxError, type VerbAction } from "@coppice/core";
import { isKeyScope, KEY_SCOPES, type KeyScope } from "./key-scopes.js";
import { KeyStore } from "./key-store.js";
import { TENANT_NAME } from "./tenant-name.js";

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
