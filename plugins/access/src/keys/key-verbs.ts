import { DEFAULT_TENANT, duration, SandboxError, type VerbAction } from "@coppice/core";
import { isKeyScope, KEY_SCOPES, type KeyScope, KeyStore, type StoredKey, TENANT_NAME } from "./key-store.js";
import { REASONS } from "../reasons.js";

const MAX_NAME = 100;

export const keysCreate: VerbAction<unknown> = (command, { clock, dataDir, print }) =>
  command
    .description("makes an API key and prints it")
    .option("--tenant <name>", "whose key it is", DEFAULT_TENANT)
    .option("--name <name>", "what it is for")
    .option("--scopes <scopes>", "some of read, exec and admin, with commas", "exec")
    .option("--expires <time>", "how long it is valid, as 90d")
    .addHelpText(
      "after",
      "\nExample:\n  coppice keys create coppice.yaml --tenant acme --name ci --expires 90d",
    )
    .action(({ tenant, name, expires, scopes: text }) => {
      if (!TENANT_NAME.test(tenant)) throw invalid("--tenant is letters, digits, '.', '_' and '-'");
      if (name !== undefined && (!/^\S.*$/.test(name) || name.length > MAX_NAME))
        throw invalid(`--name is one line of at most ${MAX_NAME} characters`);
      using store = new KeyStore(dataDir());
      const nowMs = clock.now();
      const expiresAtMs = expires === undefined ? undefined : nowMs + parseDuration(expires);
      const scopes = parseScopes(text);
      const { key, stored } = store.create({ tenant, name, scopes, expiresAtMs }, nowMs);
      print(key);
      process.stderr.write(
        `key ${stored.id} '${stored.name}' of tenant '${tenant}' may ${scopes.join(", ")}` +
          `${expiresAtMs === undefined ? "" : ` until ${new Date(expiresAtMs).toISOString()}`}. It is not shown again.\n`,
      );
    });

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

export const keysList: VerbAction<unknown> = (command, { clock, dataDir, print, printTable }) =>
  command
    .description("lists API keys, without what they are")
    .option("--tenant <name>", "only those of it")
    .option("--json", "prints JSON")
    .addHelpText("after", "\nExample:\n  coppice keys list coppice.yaml --json")
    .action((values) => {
      using store = new KeyStore(dataDir());
      const keys = store
        .list()
        .filter(({ tenant }) => values.tenant === undefined || tenant === values.tenant)
        .map((key) => keyRow(key, clock.now()));
      const rows = keys.map((key) => Object.values(key));
      if (values.json) print(JSON.stringify(keys));
      else printTable(HEADING, rows);
    });

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
export const keysRevoke: VerbAction<unknown> = (command, { clock, dataDir, print }) =>
  command
    .description("revokes a key")
    .argument("<id>", "of the key, as list has it")
    .addHelpText("after", "\nExample:\n  coppice keys revoke coppice.yaml k1a2b3c4")
    .action((id) => {
      using store = new KeyStore(dataDir());
      if (!store.revoke(id, clock.now()))
        throw new SandboxError(REASONS.key_not_found, `no key '${id}' is in use`);
      print(`key ${id} is revoked`);
    });
