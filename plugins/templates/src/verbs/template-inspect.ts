import { MEBIBYTE, SandboxError, type VerbAction } from "@coppice/core";
import { ARCHITECTURE } from "../images/host-programs.js";
import { differencesOf } from "../model/contents-lock.js";
import type { BuildRecord } from "../model/build-record.js";
import { SERVER, type TemplateRecord } from "../model/template-record.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { lockOf, readLock } from "../recipes/recipe.js";
import { contentsOf, findTemplate, isForAll, nameOf } from "./find-template.js";
import { REASONS } from "../reasons.js";

const HEADING = ["NAME", "ID", "TENANT", "ACCESS", "BUILDS", "NEWEST", "MiB", "CREATED", "LAST USED"];

/** Prints the built templates of all tenants, and those of the configuration that have a recipe. */
export const templateList: VerbAction<TemplatesConfig> = (command, { dataDir, print, printTable }) =>
  command
    .description("lists built templates of all tenants, and those of the configuration that have a recipe")
    .option("--tenant <name>", "only its templates")
    .option("--json", "prints JSON")
    .addHelpText("after", "\nExample:\n  coppice template list coppice.yaml --tenant acme")
    .action(({ tenant, json }) => {
      using store = new TemplatesStore(dataDir());
      const found = store.templates.list(tenant === undefined ? {} : { owner: tenant });
      const rows = found.map((template) => templateRow(template, store));
      if (json) print(JSON.stringify(rows));
      else
        printTable(
          HEADING,
          rows.map((row) => Object.values(row).map((value) => String(value ?? "-"))),
        );
    });

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

/**
 * Prints all that the server knows about a template, in JSON: its tags, and its builds, the newest first, or that of a
 * tag alone. With `--contents` it prints the packages of the build of a tag instead.
 */
export const templateInspect: VerbAction<TemplatesConfig> = (command, { config, dataDir, print }) =>
  command
    .description("prints all that the server knows about a template, in JSON")
    .argument("<name>", "name, name:tag for one build, or id")
    .option("--contents", "prints its packages instead")
    .addHelpText(
      "after",
      "\nExamples:\n  coppice template inspect coppice.yaml acme/web:v1\n  coppice template inspect coppice.yaml base --contents",
    )
    .action(async (reference, { contents }) => {
      using store = new TemplatesStore(dataDir());
      if (contents) {
        for (const line of contentsOf(store, reference)) print(line);
        return;
      }
      const [name = "", tag] = reference.split(":");
      const template = findTemplate(store, name);
      const tagged = tag === undefined ? undefined : store.builds.tagged(template.id, tag);
      if (tag !== undefined && tagged === undefined)
        throw new SandboxError(
          REASONS.build_not_found,
          `no ready build of template '${name}' has the tag '${tag}'`,
        );
      const { id, owner, createdAtMs, updatedAtMs, spawnCount, lastSpawnedAtMs } = template;
      const body = {
        name: nameOf(template),
        id,
        tenant: owner === SERVER ? null : owner,
        public: isForAll(template),
        createdAt: timeOf(createdAtMs),
        updatedAt: timeOf(updatedAtMs),
        sandboxes: spawnCount,
        lastUsedAt: timeOf(lastSpawnedAtMs),
        tags: store.tags
          .list(id)
          .map((tag) => ({ name: tag.name, build: tag.buildId, assignedAt: timeOf(tag.assignedAtMs) })),
        lock: await lockBody(store, template, config),
        builds: (tagged === undefined ? store.builds.list(id) : [tagged]).map(buildBody),
      };
      print(JSON.stringify(body, undefined, 2));
    });

/** How the newest build of a recipe differs from its lock file; undefined without one. */
async function lockBody(store: TemplatesStore, { id, owner }: TemplateRecord, { recipes }: TemplatesConfig) {
  const recipe = owner === SERVER && Object.hasOwn(recipes, id) ? recipes[id] : undefined;
  if (typeof recipe !== "string") return undefined;
  const file = lockOf(recipe);
  const lock = await readLock(file);
  const build = store.builds.tagged(id, "default");
  const contents = build?.result && store.images.contentsOf(build.result.image);
  if (lock === undefined || lock.architecture !== ARCHITECTURE || contents === undefined) return undefined;
  return { file, differences: differencesOf(lock.contents, contents) };
}

function buildBody({ id, state, backend, limits, result, reason, createdAtMs, finishedAtMs }: BuildRecord) {
  return {
    id,
    state,
    reason,
    backend,
    limits,
    createdAt: timeOf(createdAtMs),
    finishedAt: timeOf(finishedAtMs),
    ...(result !== undefined && {
      image: result.image,
      bytes: result.bytes,
      ...result.context,
      start: result.start,
    }),
  };
}

function timeOf(atMs: number | undefined): string | null {
  return atMs === undefined ? null : new Date(atMs).toISOString();
}
