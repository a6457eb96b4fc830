import { createHash } from "node:crypto";
import type { LiveSandbox, SandboxRecord, TemplateFacts } from "@coppice/core";
import { ENVD_VERSION } from "../bodies/sandbox-body.js";

/** A template and its use by a tenant's sandboxes. */
export interface TemplateUse {
  readonly template: TemplateFacts;
  /** Those that were made from it, not from a snapshot of one. */
  readonly sandboxes: readonly LiveSandbox[];
  /** Start of the server, which stands for the templates' missing dates. */
  readonly servedSinceMs: number;
}

/** A template in lists, and the common part of all answers about templates. */
export function templateBody({ template, sandboxes, servedSinceMs }: TemplateUse) {
  const since = new Date(servedSinceMs).toISOString();
  const { name, aliases, limits } = template;
  return {
    templateID: name,
    buildID: buildIdOf(name),
    public: true,
    names: [name, ...aliases],
    aliases: [name, ...aliases],
    // 0 where its backend cannot tell.
    cpuCount: Math.ceil(limits.cpuCount ?? 0),
    memoryMB: limits.memoryMiB ?? 0,
    diskSizeMB: limits.diskMiB ?? 0,
    createdAt: since,
    updatedAt: since,
    createdBy: null,
    lastSpawnedAt: lastStart(sandboxes.map(({ record }) => record)),
    spawnCount: sandboxes.length,
    buildCount: 1,
    buildStatus: "ready",
    envdVersion: ENVD_VERSION,
  };
}

/** The details of one template, whose only build is the served one. */
export function templateDetailBody(use: TemplateUse) {
  const body = templateBody(use);
  const { buildID, cpuCount, memoryMB, diskSizeMB, createdAt, updatedAt, envdVersion } = body;
  const build = {
    buildID,
    status: "ready",
    createdAt,
    updatedAt,
    finishedAt: createdAt,
    cpuCount,
    memoryMB,
    diskSizeMB,
    envdVersion,
  };
  return { ...body, builds: [build] };
}

/** The only tag of a template or snapshot. @param id names its build. */
export function tagsBody(id: string, tag: string, createdAtMs: number) {
  return [{ tag, buildID: buildIdOf(id), createdAt: new Date(createdAtMs).toISOString() }];
}

function lastStart(records: readonly SandboxRecord[]): string | null {
  if (records.length === 0) return null;
  return new Date(Math.max(...records.map(({ startedAtMs }) => startedAtMs))).toISOString();
}

/** Clients expect a UUID: always the same one for the same name. */
function buildIdOf(name: string): string {
  const digest = createHash("sha256").update(name).digest("hex");
  // Version 8: a custom scheme.
  return `${digest.slice(0, 8)}-${digest.slice(8, 12)}-8${digest.slice(13, 16)}-8${digest.slice(17, 20)}-${digest.slice(20, 32)}`;
}
