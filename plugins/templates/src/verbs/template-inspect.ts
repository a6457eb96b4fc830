import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import type { BuildRecord } from "../model/build-record.js";
import { SERVER } from "../model/template-record.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { findTemplate, nameOf } from "./find-template.js";

/** Prints all that the server knows about a template, in JSON: its tags, and its builds, the newest first. */
export const templateInspect: VerbAction<TemplatesConfig> = {
  usage: "<name or id>",
  run({ args, dataDir, print }) {
    const { positionals } = parseArgs({ args: [...args], allowPositionals: true, options: {} });
    const [name, ...others] = positionals;
    if (name === undefined || others.length > 0) throw new SandboxError("usage_invalid", "name one template");
    using store = new TemplatesStore(dataDir());
    const template = findTemplate(store, name);
    const { id, owner, isPublic, createdAtMs, updatedAtMs, spawnCount, lastSpawnedAtMs } = template;
    const limit = store.builds.count(id);
    const body = {
      name: nameOf(template),
      id,
      tenant: owner === SERVER ? null : owner,
      public: isPublic,
      createdAt: timeOf(createdAtMs),
      updatedAt: timeOf(updatedAtMs),
      sandboxes: spawnCount,
      lastUsedAt: timeOf(lastSpawnedAtMs),
      tags: store.tags
        .list(id)
        .map((tag) => ({ name: tag.name, build: tag.buildId, assignedAt: timeOf(tag.assignedAtMs) })),
      builds: store.builds.list(id, { limit, before: Number.MAX_SAFE_INTEGER }).map(buildBody),
    };
    print(JSON.stringify(body, undefined, 2));
    return 0;
  },
};

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
