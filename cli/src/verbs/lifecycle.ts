import { printFailure, printLine } from "@coppice/core/client";
import { Sandbox } from "e2b";
import { z } from "zod";
import { connectionOf, type ServerOptions } from "../connection/connection.js";
import { apiOf, refused } from "../connection/open-sandbox.js";
import { printJson, printRows, type RowOptions } from "../connection/print.js";

export interface CreateOptions extends ServerOptions {
  readonly template?: string | undefined;
  /** Milliseconds. */
  readonly ttl?: number | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
}

/** The options as the SDK has them. */
export function creationOf({ ttl, env, metadata, ...server }: CreateOptions) {
  return {
    ...connectionOf(server),
    ...(ttl !== undefined && { timeoutMs: ttl }),
    ...(env && { envs: env }),
    ...(metadata && { metadata }),
  };
}

/** Creates a sandbox and prints its id. */
export async function create(options: CreateOptions & { readonly json?: true | undefined }): Promise<number> {
  const { sandboxId } = await Sandbox.create(options.template ?? "base", creationOf(options));
  if (options.json) printJson(await Sandbox.getInfo(sandboxId, connectionOf(options)));
  else printLine(sandboxId);
  return 0;
}

const COLUMNS = ["id", "template", "state", "started", "end", "cpu", "memory", "metadata"];

type State = "running" | "paused";

/** Of a sandbox, as the SDK has it and as the API sends it. */
interface Shown {
  readonly state: string;
  readonly startedAt: Date | string;
  readonly endAt: Date | string;
  readonly cpuCount: number;
  readonly memoryMB: number;
  readonly metadata: Readonly<Record<string, string>>;
}

interface PsOptions extends ServerOptions, RowOptions, Pick<CreateOptions, "metadata"> {
  readonly state?: State | undefined;
  readonly allTenants?: true | undefined;
}

/** Lists the sandboxes that the key may see, or for the operator those of all tenants, the newest first. */
export async function ps({ state, metadata, allTenants, ...options }: PsOptions) {
  if (allTenants) return psOfAll({ state, metadata, ...options });
  const found = await everySandbox(options, {
    ...(state && { state: [state] }),
    ...(metadata && { metadata }),
  });
  const rows = found.map((each) => rowOf(each.sandboxId, each.name ?? each.templateId, each));
  printRows(COLUMNS, rows, options, found);
  return 0;
}

const tenantSandbox = z.looseObject({
  tenantID: z.string(),
  sandboxID: z.string(),
  alias: z.string(),
  state: z.string(),
  startedAt: z.string(),
  endAt: z.string(),
  cpuCount: z.number(),
  memoryMB: z.number(),
  metadata: z.record(z.string(), z.string()),
});

async function psOfAll({ state, metadata = {}, ...options }: PsOptions): Promise<number> {
  const pairs = Object.entries(metadata).map(([name, value]): [string, string] => [
    encodeURIComponent(name),
    encodeURIComponent(value),
  ]);
  const query = {
    allTenants: true,
    ...(state && { state: [state] }),
    ...(pairs.length > 0 && { metadata: new URLSearchParams(pairs).toString() }),
  };
  const api = apiOf(options);
  const found = [];
  for (let nextToken: string | undefined = ""; nextToken !== undefined;) {
    const answer: {
      readonly data?: unknown;
      readonly error?: { readonly code: number; readonly message: string };
      readonly response: Response;
    } = await api.GET("/v2/sandboxes", {
      params: { query: { ...query, ...(nextToken !== "" && { nextToken }) } },
    });
    if (answer.error !== undefined) throw refused(answer.error);
    const page = tenantSandbox.array().safeParse(answer.data);
    // Without the names it has listed those of the key alone.
    if (page.error) throw new Error("this server does not list sandboxes of all tenants");
    found.push(...page.data);
    nextToken = answer.response.headers.get("x-next-token") ?? undefined;
  }
  const rows = found.map((each) => ({
    tenant: each.tenantID,
    ...rowOf(each.sandboxID, each.alias, each),
  }));
  printRows(["tenant", ...COLUMNS], rows, options, found);
  return 0;
}

/** A sandbox in the columns of `ps`. */
function rowOf(
  id: string,
  template: string,
  { state, startedAt, endAt, cpuCount, memoryMB, metadata }: Shown,
) {
  return {
    id,
    template,
    state,
    started: startedAt,
    end: endAt,
    cpu: cpuCount,
    memory: `${memoryMB} MiB`,
    metadata: Object.entries(metadata)
      .map(([name, value]) => `${name}=${value}`)
      .join(" "),
  };
}

/** All pages of sandboxes. */
export async function everySandbox(
  server: ServerOptions,
  query: NonNullable<NonNullable<Parameters<typeof Sandbox.list>[0]>["query"]>,
) {
  const pages = Sandbox.list({ ...connectionOf(server), query });
  const found = [];
  while (pages.hasNext) found.push(...(await pages.nextItems()));
  return found;
}

/** Does something to sandboxes, one after the other: also to those behind one that does not exist. */
async function toEach(
  ids: readonly string[],
  act: (id: string) => Promise<unknown>,
  failed = "there is no sandbox",
): Promise<number> {
  let code = 0;
  for (const id of ids) {
    if ((await act(id)) !== false) continue;
    printFailure(`${failed} '${id}'`);
    code = 2;
  }
  return code;
}

export function kill(ids: readonly string[], server: ServerOptions): Promise<number> {
  return toEach(ids, (id) => Sandbox.kill(id, connectionOf(server)));
}

export function pause(ids: readonly string[], server: ServerOptions): Promise<number> {
  // False: it was paused already.
  return toEach(ids, async (id) => void (await Sandbox.pause(id, connectionOf(server))));
}

export function resume(
  ids: readonly string[],
  { ttl, ...server }: ServerOptions & Pick<CreateOptions, "ttl">,
): Promise<number> {
  return toEach(ids, (id) =>
    Sandbox.connect(id, { ...connectionOf(server), ...(ttl !== undefined && { timeoutMs: ttl }) }),
  );
}

/** Makes a snapshot, of which `create --template` makes sandboxes, and prints its id. */
export async function snapshot(
  id: string,
  {
    name,
    json,
    ...server
  }: ServerOptions & { readonly name?: string | undefined; readonly json?: true | undefined },
): Promise<number> {
  const made = await Sandbox.createSnapshot(id, {
    ...connectionOf(server),
    ...(name !== undefined && { name }),
  });
  if (json) printJson(made);
  else printLine(made.snapshotId);
  return 0;
}

/** Makes copies of a running sandbox, and prints their ids. */
export async function fork(
  id: string,
  {
    count,
    ttl,
    json,
    ...server
  }: ServerOptions &
    Pick<CreateOptions, "ttl"> & { readonly count: number; readonly json?: true | undefined },
): Promise<number> {
  const made = await Sandbox.fork(id, {
    ...connectionOf(server),
    count,
    ...(ttl !== undefined && { timeoutMs: ttl }),
  });
  const ids = made.flatMap((each) => (each instanceof Error ? [] : [each.sandboxId]));
  if (json) printJson(ids);
  else for (const each of ids) printLine(each);
  for (const each of made) if (each instanceof Error) printFailure(each.message);
  return ids.length === made.length ? 0 : 1;
}
