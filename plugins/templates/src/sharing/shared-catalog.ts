import { parseJson, SandboxError, type SharedTemplates } from "@coppice/core";
import { z } from "zod";
import type { TemplateReference } from "../model/template-record.js";

const build = z.object({
  /** Of its image in the registry; absent until it is there. */
  digest: z
    .string()
    .regex(/^sha256:[0-9a-f]{64}$/)
    .optional(),
  backend: z.string(),
  limits: z.object({
    cpuCount: z.int().positive(),
    memoryMiB: z.int().positive(),
    diskMiB: z.int().positive().optional(),
  }),
});

const record = z.object({
  /** Of the data directory that has it: a server whose directory is another one has it no longer. */
  store: z.string(),
  /** For a snapshot that is lent: the template of its sandbox. */
  snapshotOf: z.string().optional(),
  owner: z.string(),
  namespace: z.string(),
  alias: z.string(),
  isPublic: z.boolean(),
  createdAtMs: z.number(),
  /** UUIDs of builds by tag. */
  tags: z.record(z.string(), z.string()),
  /** Those that a tag leads to, by UUID. */
  builds: z.record(z.string(), build),
});

/** A template as its server tells the others of it. */
export type SharedRecord = z.infer<typeof record>;
type SharedBuild = z.infer<typeof build>;

/** Undefined for text that a newer version may have written. */
function sharedRecordOf(value: string): SharedRecord | undefined {
  try {
    return record.parse(parseJson(Buffer.from(value)));
  } catch {
    return undefined;
  }
}

export function sharedText(shared: SharedRecord): string {
  return JSON.stringify(record.parse(shared));
}

export type SharedTemplate = NonNullable<ReturnType<NonNullable<SharedTemplates["records"]>["get"]>>;

/** A build of a shared template. */
export interface FoundBuild {
  readonly templateId: string;
  readonly template: SharedRecord;
  readonly buildId: string;
  readonly build: SharedBuild;
}

interface Parsed {
  readonly revision: number;
  readonly record: SharedRecord | undefined;
}

/** Finds templates of all servers by the names that tenants use, as `Catalog` finds this server's. */
export class SharedCatalog {
  readonly #shared: SharedTemplates;
  /** By id, the newest that is known. */
  readonly #parsed = new Map<string, Parsed>();

  constructor(shared: SharedTemplates) {
    this.#shared = shared;
  }

  /** @throws SandboxError template_tag_not_found for a template without that tag */
  find({ name, tag }: TemplateReference, tenant: string): FoundBuild | undefined {
    const found = this.#named(name, tenant);
    if (found === undefined) return undefined;
    const [templateId, template] = found;
    const buildId = Object.hasOwn(template.builds, tag) ? tag : template.tags[tag];
    const build = buildId === undefined ? undefined : template.builds[buildId];
    if (buildId === undefined || build === undefined)
      throw new SandboxError("template_tag_not_found", `tag '${tag}' does not exist for template '${name}'`);
    return { templateId, template, buildId, build };
  }

  /** All templates that have not been removed. */
  *records(): Iterable<readonly [id: string, shared: SharedTemplate, record: SharedRecord]> {
    for (const [id, shared] of this.#shared.records?.entries() ?? []) {
      const record = this.#recordOf(id, shared);
      if (record !== undefined) yield [id, shared, record];
    }
  }

  /** Reads a template anew. @throws SandboxError when the servers' store cannot be reached */
  async refresh(id: string): Promise<void> {
    const shared = await this.#shared.records?.read(id);
    if (shared !== undefined) this.#recordOf(id, shared);
    else this.#parsed.set(id, { revision: this.#parsed.get(id)?.revision ?? 0, record: undefined });
  }

  /** Forgets what is in the record no more. */
  prune(): void {
    for (const id of this.#parsed.keys())
      if (this.#shared.records?.get(id) === undefined) this.#parsed.delete(id);
  }

  #named(name: string, tenant: string): readonly [string, SharedRecord] | undefined {
    const [first, alias] = name.split("/");
    let byId: readonly [string, SharedRecord] | undefined;
    for (const [id, , record] of this.records()) {
      const { owner, isPublic, namespace } = record;
      if (owner !== tenant && !isPublic) continue;
      const isNamed =
        alias === undefined
          ? owner === tenant && record.alias === name
          : namespace === first && record.alias === alias;
      if (isNamed) return [id, record];
      if (id === name) byId = [id, record];
    }
    return byId;
  }

  #recordOf(id: string, { value, revision }: SharedTemplate): SharedRecord | undefined {
    const known = this.#parsed.get(id);
    if (known !== undefined && known.revision >= revision) return known.record;
    const record = value === undefined ? undefined : sharedRecordOf(value);
    this.#parsed.set(id, { revision, record });
    return record;
  }
}
