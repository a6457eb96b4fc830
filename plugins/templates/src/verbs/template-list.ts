import { parseArgs } from "node:util";
import { type VerbAction, MEBIBYTE } from "@coppice/core";
import { SERVER, type TemplateRecord } from "../model/template-record.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { isForAll, nameOf } from "./find-template.js";

const HEADING = ["NAME", "ID", "TENANT", "ACCESS", "BUILDS", "NEWEST", "MiB", "CREATED", "LAST USED"];

/** Prints the built templates of all tenants, and those of the configuration that have a recipe. */
export const templateList: VerbAction<TemplatesConfig> = {
  usage: "[--tenant acme] [--json]",
  run({ args, dataDir, print, printTable }) {
    const { values } = parseArgs({
      args: [...args],
      options: { tenant: { type: "string" }, json: { type: "boolean", default: false } },
    });
    using store = new TemplatesStore(dataDir());
    const { tenant } = values;
    const found = store.templates.list(tenant === undefined ? {} : { owner: tenant });
    const rows = found.map((template) => templateRow(template, store));
    if (values.json) print(JSON.stringify(rows));
    else
      printTable(
        HEADING,
        rows.map((row) => Object.values(row).map((value) => String(value ?? "-"))),
      );
    return 0;
  },
};

function templateRow(template: TemplateRecord, { builds }: TemplatesStore) {
  const { id, owner, createdAtMs, lastSpawnedAtMs } = template;
  const all = builds.list(id);
  const [newest] = all;
  const current = builds.tagged(id, "default") ?? all.find(({ state }) => state === "ready");
  const bytes = current?.result?.bytes;
  return {
    name: nameOf(template),
    id,
    tenant: owner === SERVER ? null : owner,
    access: isForAll(template) ? "public" : "private",
    builds: all.length,
    newest: newest?.state ?? null,
    sizeMiB: bytes === undefined ? null : Math.ceil(bytes / MEBIBYTE),
    createdAt: new Date(createdAtMs).toISOString(),
    lastUsedAt: lastSpawnedAtMs === undefined ? null : new Date(lastSpawnedAtMs).toISOString(),
  };
}
