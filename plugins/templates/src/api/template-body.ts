import {
  ENVD_VERSION,
  firstPage,
  type gatherAnswers,
  type LiveSandbox,
  mergedPage,
  pageFields,
  parseInput,
  SandboxError,
  type SandboxRecord,
  type SnapshotRecord,
  type TemplateFacts,
  digestOf,
} from "@coppice/core";
import type { Limits } from "@coppice/core/backend";
import { z } from "zod";
import type { BuildRecord } from "../model/build-record.js";
import type { TemplateRecord } from "../model/template-record.js";
import type { Tag } from "../store/build-table.js";

/** The id of no build. */
const NO_BUILD = "00000000-0000-0000-0000-000000000000";

/** A template of the configuration and its use by a tenant's sandboxes. */
export interface ConfiguredTemplate {
  readonly template: TemplateFacts;
  /** Undefined where it has never been built here. */
  readonly recipe: Pick<BuiltTemplate, "template" | "buildCount" | "newest"> | undefined;
  /** Those that were made from it, not from a snapshot of one. */
  readonly sandboxes: readonly LiveSandbox[];
  /** Start of the server, which stands for missing dates. */
  readonly servedSinceMs: number;
}

/** A template that a client builds. */
export interface BuiltTemplate {
  readonly template: TemplateRecord;
  readonly buildCount: number;
  /** The newest build with the tag `default`, or else of all. */
  readonly newest: BuildRecord | undefined;
  /** The ready build with the tag `default`. */
  readonly current: BuildRecord | undefined;
  /** Of a sandbox whose template sets none. */
  readonly defaultLimits: Limits | undefined;
}

type TemplateBody = ReturnType<typeof configuredBody> | ReturnType<typeof builtBody>;

/** A template of the configuration, in lists. */
export function configuredBody({ template, recipe, sandboxes, servedSinceMs }: ConfiguredTemplate) {
  const { name, aliases, limits } = template;
  const { createdAtMs = servedSinceMs, updatedAtMs = servedSinceMs } = recipe?.template ?? {};
  const status: BuildRecord["state"] =
    template.build !== undefined ? "ready" : (recipe?.newest?.state ?? "ready");
  return {
    templateID: name,
    buildID: template.build?.id ?? buildIdOf(name),
    public: true,
    names: [name, ...aliases],
    aliases: [name, ...aliases],
    ...limitsBody(limits),
    createdAt: new Date(createdAtMs).toISOString(),
    updatedAt: new Date(updatedAtMs).toISOString(),
    createdBy: null,
    // How much other tenants use it is none of this one's business.
    lastSpawnedAt: lastStart(sandboxes.map(({ record }) => record)),
    spawnCount: sandboxes.length,
    buildCount: recipe?.buildCount ?? 1,
    buildStatus: status,
    envdVersion: ENVD_VERSION,
  };
}

/** The details of a template of the configuration, whose only build is the served one. */
export function configuredDetailBody(configured: ConfiguredTemplate) {
  const body = configuredBody(configured);
  const { buildID, cpuCount, memoryMB, diskSizeMB, createdAt, updatedAt, envdVersion, buildStatus } = body;
  const build = {
    buildID,
    status: buildStatus,
    createdAt,
    updatedAt,
    ...(buildStatus === "ready" && { finishedAt: updatedAt }),
    cpuCount,
    memoryMB,
    diskSizeMB,
    envdVersion,
  };
  return { ...body, builds: [build] };
}

/** A template that a client builds, in lists. */
export function builtBody({ template, buildCount, newest, current, defaultLimits }: BuiltTemplate) {
  const { id, isPublic, namespace, alias, createdAtMs, updatedAtMs, lastSpawnedAtMs, spawnCount } = template;
  const status: BuildRecord["state"] = newest?.state ?? "waiting";
  return {
    templateID: id,
    buildID: current?.id ?? NO_BUILD,
    public: isPublic,
    names: [`${namespace}/${alias}`],
    aliases: [alias],
    ...limitsBody({ ...defaultLimits, ...given((current ?? newest)?.limits ?? {}) }),
    createdAt: new Date(createdAtMs).toISOString(),
    updatedAt: new Date(updatedAtMs).toISOString(),
    createdBy: null,
    lastSpawnedAt: lastSpawnedAtMs === undefined ? null : new Date(lastSpawnedAtMs).toISOString(),
    spawnCount,
    buildCount,
    buildStatus: status,
    envdVersion: ENVD_VERSION,
  };
}

/** The details of a template that a client builds. */
export function builtDetailBody(built: BuiltTemplate, builds: readonly BuildRecord[]) {
  return { ...builtBody(built), builds: builds.map((build) => buildBody(build, built.defaultLimits)) };
}

/** The only tag of a configured template. */
export function configuredTagsBody({ name, build }: TemplateFacts, servedSinceMs: number) {
  const buildId = build?.id ?? buildIdOf(name);
  return tagsBody([{ name: "default", buildId, assignedAtMs: servedSinceMs }]);
}

/** The only tag of a snapshot, which its name ends with. */
export function snapshotTagsBody({ id, name, takenAtMs }: SnapshotRecord) {
  const tag = name?.split(":")[1] ?? "default";
  return tagsBody([{ name: tag, buildId: buildIdOf(id), assignedAtMs: takenAtMs }]);
}

/** The tags of a template that a client builds. */
export function tagsBody(tags: readonly Tag[]) {
  return tags.map(({ name, buildId, assignedAtMs }) => ({
    tag: name,
    buildID: buildId,
    createdAt: new Date(assignedAtMs).toISOString(),
  }));
}

function buildBody(
  { id, state, createdAtMs, updatedAtMs, finishedAtMs, limits }: BuildRecord,
  defaultLimits: Limits | undefined,
) {
  return {
    buildID: id,
    status: state,
    createdAt: new Date(createdAtMs).toISOString(),
    updatedAt: new Date(updatedAtMs).toISOString(),
    ...(finishedAtMs !== undefined && { finishedAt: new Date(finishedAtMs).toISOString() }),
    ...limitsBody({ ...defaultLimits, ...given(limits) }),
    envdVersion: ENVD_VERSION,
  };
}

/** 0 where nothing says a limit. */
function limitsBody({ cpuCount, memoryMiB, diskMiB }: Limits) {
  return { cpuCount: Math.ceil(cpuCount ?? 0), memoryMB: memoryMiB ?? 0, diskSizeMB: diskMiB ?? 0 };
}

function given(limits: Limits): Limits {
  return Object.fromEntries(Object.entries(limits).filter(([, value]) => value !== undefined));
}

function lastStart(records: readonly SandboxRecord[]): string | null {
  if (records.length === 0) return null;
  return new Date(Math.max(...records.map(({ startedAtMs }) => startedAtMs))).toISOString();
}

/** Clients expect a UUID: always the same one for the same name. */
function buildIdOf(name: string): string {
  const digest = digestOf(name);
  // Version 8: a custom scheme.
  return `${digest.slice(0, 8)}-${digest.slice(8, 12)}-8${digest.slice(13, 16)}-8${digest.slice(17, 20)}-${digest.slice(20, 32)}`;
}

const listQuery = z.object(pageFields);

/** One template of a list, as another server wrote it. */
const listed = z.array(z.looseObject({ createdAt: z.string(), templateID: z.string() }));

/** What other servers have answered to the request of a list. */
export function listedBy(answers: Awaited<ReturnType<typeof gatherAnswers>>): readonly Position[] {
  return answers.flatMap(({ body }) => listed.parse(body));
}

export interface ListedTemplates {
  readonly configured: readonly TemplateBody[];
  readonly built: readonly TemplateBody[];
}

/** Place of the configured ones: their own date is that of a server's start, which differs. */
const LAST = new Date(0).toISOString();

/**
 * The page of `GET /v2/templates` that a query asks for, newest first, those of the configuration last.
 * @param answers the pages of the other servers.
 * @throws SandboxError invalid_argument
 */
export function templatePage(
  { configured, built }: ListedTemplates,
  query: URLSearchParams,
  answers: Awaited<ReturnType<typeof gatherAnswers>>,
): ReturnType<typeof firstPage<Position>> {
  const { limit, nextToken } = parseInput(listQuery, Object.fromEntries(query));
  const after = nextToken === "" ? undefined : readPosition(nextToken);
  const names = new Set(configured.map(({ templateID }) => templateID));
  const positionOf = ({ createdAt, templateID }: Position): Position => ({
    createdAt: names.has(templateID) ? LAST : createdAt,
    templateID,
  });
  const compare = (a: Position, b: Position): number => comparePositions(positionOf(a), positionOf(b));
  const tokenOf = (last: Position): string => {
    const { createdAt, templateID } = positionOf(last);
    return Buffer.from(`${createdAt} ${templateID}`).toString("base64url");
  };
  const left = [...configured, ...built]
    .toSorted(compare)
    .filter((one) => after === undefined || comparePositions(after, positionOf(one)) < 0);
  return mergedPage<Position>(firstPage(left, limit, tokenOf), answers, listedBy(answers), {
    limit,
    compare,
    tokenOf,
  });
}

/** Place in the order of templates. */
type Position = Pick<TemplateBody, "createdAt" | "templateID">;

function comparePositions(a: Position, b: Position): number {
  if (a.createdAt !== b.createdAt) return a.createdAt > b.createdAt ? -1 : 1;
  return a.templateID < b.templateID ? -1 : a.templateID > b.templateID ? 1 : 0;
}

function readPosition(token: string): Position {
  const text = Buffer.from(token, "base64url").toString("utf8");
  const [, createdAt, templateID] = /^(\d{4}-[\dT:.-]+Z) ([a-z0-9-_/]+)$/.exec(text) ?? [];
  if (createdAt === undefined || templateID === undefined)
    throw new SandboxError("cursor_invalid", "Invalid next token");
  return { createdAt, templateID };
}
