import assert from "node:assert/strict";
import type { ServedRoute } from "@coppice/core/testing";
import type { Client } from "./tenant-server.js";

/** As long as a real id, so that answers have equal lengths. */
export const MADE_UP = "imadeup00000000000000";

/** Two values for a parameter of a path: one of the owner's, and one of the same form that never existed. */
export type Names = Readonly<Record<string, readonly [theirs: string, madeUp: string]>>;

export interface Sample {
  /**
   * Creates the resource of the route for the owner; undefined where this host's backend does not have it. Absent:
   * the route names no resource.
   */
  readonly names?: (owner: Client) => Promise<Names | undefined>;
  /** A body that the route would take, with parameters as in the path. */
  readonly body?: string;
  /** Path and query, where parameters are not in the path alone. */
  readonly path?: string;
}

const sandbox = async (owner: Client): Promise<Names> => ({
  id: [(await owner.createSandbox()).id, MADE_UP],
});

const snapshotSource = async (owner: Client): Promise<Names | undefined> => {
  const { id } = await owner.createSandbox();
  const taken = await owner.ask("POST", `/sandboxes/${id}/snapshots`, "{}");
  return taken.status === 400 ? undefined : { id: [id, MADE_UP] };
};

const snapshot = async (owner: Client): Promise<Names | undefined> => {
  const { id } = await owner.createSandbox();
  const taken = await owner.ask("POST", `/sandboxes/${id}/snapshots`, "{}");
  if (taken.status === 400) return undefined;
  assert.equal(taken.status, 201, taken.text);
  const { snapshotID } = taken.json() as { readonly snapshotID: string };
  const [name = ""] = snapshotID.split(":");
  // Of the same form, with the same last letters.
  const madeUp = snapshotID.replace(name, `${name[0]}${"0".repeat(name.length - 1)}`);
  return { id: [encodeURIComponent(snapshotID), encodeURIComponent(madeUp)] };
};

const snapshotAlias = async (owner: Client): Promise<Names | undefined> => {
  const { id: alias } = (await snapshot(owner)) ?? {};
  return alias && { alias };
};

const volume = async (owner: Client): Promise<Names | undefined> => {
  const made = await owner.ask(
    "POST",
    "/volumes",
    JSON.stringify({ name: `v${Math.random()}`.replace(".", "_") }),
  );
  if (made.status === 400) return undefined;
  assert.equal(made.status, 201, made.text);
  const { volumeID } = made.json() as { readonly volumeID: string };
  return { id: [volumeID, `v${"0".repeat(volumeID.length - 1)}`] };
};

const webhook = async (owner: Client): Promise<Names> => {
  const wish = { url: "https://hooks.example/x", events: ["sandbox.lifecycle.created"] };
  const made = await owner.ask("POST", "/events/webhooks", JSON.stringify(wish));
  assert.equal(made.status, 201, made.text);
  const { id } = made.json() as { readonly id: string };
  return { id: [id, id.replace(/^.{8}/, "00000000")] };
};

/** A webhook and a waiting delivery, which cannot be repeated. */
const delivery = async (owner: Client): Promise<Names> => {
  const { id } = await webhook(owner);
  await owner.createSandbox();
  const list = await owner.ask("GET", `/events/webhooks/${id?.[0]}/deliveries`);
  const [first] = list.json() as { readonly id: string }[];
  assert.ok(id && first, list.text);
  return { id, delivery: [first.id, first.id.replace(/^.{8}/, "00000000")] };
};

/** A sandbox by the name that its owner gave it. */
const namedSandbox = async (owner: Client): Promise<Names> => {
  const name = `n${Math.random()}`.replace(".", "-");
  const made = await owner.ask("POST", "/v1/sandboxes", JSON.stringify({ image: "base", name }));
  assert.equal(made.status, 201, made.text);
  return { id: [name, `n0-${"0".repeat(name.length - 3)}`] };
};

const oneShotRun = async (owner: Client): Promise<Names> => {
  const started = await owner.ask("POST", "/v1/one-shot-runs?detach=true", '{"argv":["/bin/sleep","60"]}');
  assert.equal(started.status, 202, started.text);
  const { run_id: id } = started.json() as { readonly run_id: string };
  return { id: [id, id.replace(/^.{8}/, "00000000")] };
};

/** A template that has been asked for, with its build. */
const template = async (owner: Client): Promise<Names | undefined> => {
  const name = `n${Math.random()}`.replace(".", "-");
  const asked = await owner.ask("POST", "/v3/templates", JSON.stringify({ name }));
  if (asked.status === 400) return undefined;
  assert.equal(asked.status, 202, asked.text);
  const { templateID: id, buildID: build } = asked.json() as {
    readonly templateID: string;
    readonly buildID: string;
  };
  return {
    id: [id, "0".repeat(id.length)],
    name: [name, `n0-${"0".repeat(name.length - 3)}`],
    build: [build, build.replace(/^.{8}/, "00000000")],
    hash: ["0".repeat(64), "0".repeat(64)],
  };
};

/** A sandbox and a command in it. */
const command = async (owner: Client): Promise<Names> => {
  const { id } = await owner.createSandbox();
  const path = `/v1/sandboxes/${id}/commands`;
  const started = await owner.ask("POST", path, '{"argv":["/bin/sleep","60"]}');
  assert.equal(started.status, 201, started.text);
  const { command_id: cid } = started.json() as { readonly command_id: string };
  return { id: [id, MADE_UP], cid: [cid, cid.replace(/^.{8}/, "00000000")] };
};

/**
 * A sample request for every route that requires a key. A route without an entry fails the tests of tenants and of
 * scopes: add one whose parameters name resources of the owner.
 */
export const SAMPLES: Readonly<Record<string, Sample>> = {
  "GET /health": {},
  "GET /auth/whoami": {},
  "GET /audit/events": { path: "/audit/events?tenantID=acme" },
  // The timeout is longer than the test, so that no sandbox ends during it.
  "POST /sandboxes": { body: '{"templateID":"base","timeout":300}' },
  "POST /v2/sandboxes": { body: '{"templateID":"base"}' },
  "GET /sandboxes": { path: "/sandboxes?metadata=of%3Dacme" },
  "GET /v2/sandboxes": { path: "/v2/sandboxes?state=running,paused" },
  "GET /sandboxes/:id": { names: sandbox },
  "DELETE /sandboxes/:id": { names: sandbox },
  "POST /sandboxes/:id/connect": { names: sandbox, body: '{"timeout":300}' },
  "POST /v2/sandboxes/:id/connect": { names: sandbox, body: "{}" },
  "POST /sandboxes/:id/pause": { names: sandbox },
  "POST /sandboxes/:id/resume": { names: sandbox, body: '{"timeout":300}' },
  "POST /sandboxes/:id/timeout": { names: sandbox, body: '{"timeout":0}' },
  "POST /sandboxes/:id/refreshes": { names: sandbox, body: '{"duration":600}' },
  "PUT /sandboxes/:id/network": { names: sandbox, body: "{}" },
  "PATCH /sandboxes/:id/limits": { names: sandbox, body: '{"cpuCount":0}' },
  "GET /sandboxes/:id/metrics": { names: sandbox },
  "GET /sandboxes/metrics": { names: sandbox, path: "/sandboxes/metrics?sandbox_ids=:id" },
  "GET /sandboxes/:id/logs": { names: sandbox },
  "GET /v2/sandboxes/:id/logs": { names: sandbox },
  "POST /sandboxes/:id/snapshots": { names: sandbox, body: "{}" },
  "POST /sandboxes/:id/fork": { names: sandbox, body: '{"count":1,"timeout":300}' },
  "GET /snapshots": {},
  "DELETE /templates/:id": { names: snapshot },
  "GET /templates": {},
  "GET /v2/templates": {},
  "GET /templates/:id": { path: "/templates/base" },
  "GET /templates/aliases/:alias": { names: snapshotAlias },
  "GET /templates/:id/tags": { names: snapshot },
  "POST /v3/templates": { body: "{}" },
  "POST /v2/templates/:id/builds/:build": { names: template, body: '{"fromImage":"debian"}' },
  "POST /templates/:id/builds/:build/cancel": { names: template },
  "POST /templates/push": { names: template, body: '{"template":":name","image":"registry.example/a:1"}' },
  "GET /templates/:id/builds/:build/status": { names: template },
  "GET /templates/:id/builds/:build/logs": { names: template },
  "GET /templates/:id/files/:hash": { names: template },
  // Its link has the permission.
  "PUT /templates/uploads/:ticket": { path: "/templates/uploads/made.up" },
  "PATCH /templates/:id": { path: "/templates/base", body: '{"public":false}' },
  "PATCH /v2/templates/:id": { path: "/v2/templates/base", body: '{"public":false}' },
  "POST /templates/tags": { body: "{}" },
  "DELETE /templates/tags": {
    names: template,
    path: "/templates/tags",
    body: '{"name":":name","tags":["v1"]}',
  },
  "GET /volumes": {},
  "POST /volumes": { body: '{"name":"of-acme"}' },
  "GET /volumes/:id": { names: volume },
  "DELETE /volumes/:id": { names: volume },
  "GET /events/sandboxes": { path: "/events/sandboxes?limit=100" },
  "GET /events/sandboxes/:id": { names: sandbox },
  "GET /events/webhooks": {},
  "POST /events/webhooks": {
    body: '{"url":"https://hooks.example/x","events":["sandbox.lifecycle.killed"]}',
  },
  "GET /events/webhooks/deliveries": {},
  "GET /events/webhooks/:id": { names: webhook },
  "PATCH /events/webhooks/:id": { names: webhook, body: '{"name":"theirs"}' },
  "DELETE /events/webhooks/:id": { names: webhook },
  "GET /events/webhooks/:id/deliveries": { names: delivery },
  "POST /events/webhooks/:id/deliveries/:delivery/repeat": { names: delivery },
  "POST /sandboxes/:id/exec": { names: sandbox, body: '{"cmd":"true"}' },
  "UPGRADE /sandboxes/:id/ws": { names: sandbox },
  "GET /v1/auth/whoami": {},
  "POST /v1/sandboxes": { body: '{"image":"base"}' },
  "GET /v1/sandboxes": {},
  "GET /v1/sandboxes/:id": { names: sandbox },
  "PATCH /v1/sandboxes/:id": { names: namedSandbox, body: '{"auto_stop_minutes":1}' },
  "DELETE /v1/sandboxes/:id": { names: namedSandbox },
  "POST /v1/sandboxes/:id/stop": { names: sandbox },
  "POST /v1/sandboxes/:id/start": { names: sandbox },
  "POST /v1/sandboxes/:id/extend": { names: sandbox, body: '{"auto_delete_hours":1}' },
  "POST /v1/sandboxes/:id/files/export": { names: sandbox, body: '{"src_dir":"/tmp"}' },
  "POST /v1/sandboxes/:id/files/import": { names: sandbox, body: "" },
  "POST /v1/one-shot-runs": { body: '{"argv":["true"]}' },
  "GET /v1/one-shot-runs/:id": { names: oneShotRun },
  "GET /v1/one-shot-runs/:id/logs": { names: oneShotRun },
  "DELETE /v1/one-shot-runs/:id": { names: oneShotRun },
  "UPGRADE /v1/sandboxes/:id/sessions/:sid": {
    names: async (owner) => ({ ...(await sandbox(owner)), sid: ["main", "other"] }),
  },
  "POST /v1/sandboxes/:id/commands": { names: sandbox, body: '{"argv":["true"]}' },
  "GET /v1/sandboxes/:id/commands": { names: sandbox },
  "GET /v1/sandboxes/:id/commands/:cid": { names: command },
  "DELETE /v1/sandboxes/:id/commands/:cid": { names: command },
  "GET /v1/sandboxes/:id/commands/:cid/logs": { names: command },
};

/** Further requests for resources of another tenant. */
export const MORE: readonly (readonly [route: string, Sample])[] = [
  ["GET /templates/:id", { names: template }],
  ["GET /templates/:id/tags", { names: template }],
  ["GET /templates/aliases/:alias", { names: template, path: "/templates/aliases/:name" }],
  ["DELETE /templates/:id", { names: template }],
  ["PATCH /templates/:id", { names: template, body: '{"public": false}' }],
  ["PATCH /v2/templates/:id", { names: template, body: '{"public": false}' }],
  ["GET /snapshots", { names: snapshotSource, path: "/snapshots?sandboxID=:id" }],
  [
    "POST /v2/sandboxes",
    {
      names: async (owner) => {
        const { id } = (await snapshot(owner)) ?? {};
        // Refusals call it by its name, without the tag.
        const nameOf = (text: string): string => decodeURIComponent(text).split(":")[0] ?? "";
        return id && { id: [nameOf(id[0]), nameOf(id[1])] };
      },
      body: '{"templateID":":id"}',
    },
  ],
  [
    "POST /v2/sandboxes",
    { names: volume, body: '{"templateID":"base","volumeMounts":[{"name":":id","path":"/data"}]}' },
  ],
];

/** As the entries of `SAMPLES` are called. */
export function keyOf({ kind, method, path }: ServedRoute): string {
  return `${kind === "upgrade" ? "UPGRADE" : method} ${path}`;
}

/** Puts in for each `:name` the owner's, or the one that never existed. */
export function fill(path: string, names: Names, which: 0 | 1): string {
  return path.replace(/:([A-Za-z]\w*)/g, (_, name: string) => {
    const pair = names[name];
    assert.ok(pair, `${path}: the sample names no '${name}'`);
    return pair[which];
  });
}

/** Samples with the routes that are served, of all routes. */
export function sampledRoutes(routes: readonly ServedRoute[]): readonly (readonly [ServedRoute, Sample])[] {
  assert.deepEqual(
    routes.map(keyOf).filter((key) => SAMPLES[key] === undefined),
    [],
    "routes without a sample: add them to SAMPLES, with what their parameters name",
  );
  return [...Object.entries(SAMPLES), ...MORE].flatMap(([key, sample]) =>
    routes.filter((route) => keyOf(route) === key).map((route) => [route, sample] as const),
  );
}
