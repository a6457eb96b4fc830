import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Snapshots } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { type Requested, START, templatesServer, type TemplatesServer } from "../testing/templates-server.js";

const NOWHERE = "00000000-0000-4000-8000-000000000000";

interface Refusal {
  readonly code: number;
  readonly message: string;
}

interface Tag {
  readonly tag: string;
  readonly buildID: string;
  readonly createdAt: string;
}

interface Template {
  readonly templateID: string;
  readonly buildID: string;
  readonly aliases: readonly string[];
  readonly [field: string]: unknown;
}

describe("names, tags and visibility of templates", () => {
  let server: TemplatesServer;
  let own: Requested;
  let shared: Requested;
  let hidden: Requested;

  before(async () => {
    server = await templatesServer();
    const readyOf = async (tenant: string, name: string): Promise<Requested> => {
      const requested = await server.build(name, { tenant });
      assert.equal((await server.ended(requested, tenant)).status, "ready");
      return requested;
    };
    own = await readyOf("acme", "web");
    hidden = await readyOf("sub:Jane@x", "hidden:v1");
    shared = await readyOf("sub:Jane@x", "shared");
    await server.ask(`PATCH /v2/templates/${shared.templateID}`, { public: true }, "sub:Jane@x");
  });
  after(() => server.stop());

  const refused = async (route: string, body?: unknown, tenant = "acme") => {
    const { status, json } = await server.ask<Refusal>(route, body, tenant);
    assert.equal(json.code, status, `${route}: ${JSON.stringify(json)}`);
    return `${status} ${json.message}`;
  };

  it("a tenant whose name is no namespace has one that can be written", () => {
    assert.deepEqual(own.names, ["acme/web"]);
    assert.match(String(shared.names[0]), /^sub-jane-x-[0-9a-f]{16}\/shared$/);
  });

  it("sandboxes are made of one's own templates, by alias, name or id, and of those that others have published", async () => {
    const sharedName = String(shared.names[0]);
    for (const [template, of] of [
      ["web", own],
      ["acme/web:default", own],
      [own.templateID, own],
      [`web:${own.buildID}`, own],
      [sharedName, shared],
      [shared.templateID, shared],
      [`${sharedName}:default`, shared],
    ] as const) {
      const { record } = await server.sandboxes
        .of("acme")
        .create({ template, timeoutMs: 9e4, secure: false });
      assert.equal(record.template, of.templateID, template);
      await server.sandboxes.kill(record.id);
    }
    for (const [template, message] of [
      ["shared", "template 'shared' not found"],
      ["hidden", "template 'hidden' not found"],
      [String(hidden.names[0]), `template '${hidden.names[0]}' not found`],
      [`${hidden.names[0]}:v1`, `template '${hidden.names[0]}' not found`],
      [hidden.templateID, `template '${hidden.templateID}' not found`],
      [`web:${hidden.buildID}`, `tag '${hidden.buildID}' does not exist for template 'web'`],
      ["web:v9", "tag 'v9' does not exist for template 'web'"],
      [`web:${NOWHERE}`, `tag '${NOWHERE}' does not exist for template 'web'`],
    ] as const)
      await assert.rejects(
        server.sandboxes.of("acme").create({ template, timeoutMs: 9e4, secure: false }),
        { message },
        template,
      );
  });

  it("an alias is there for its owner, and for all when its template is public", async () => {
    const ofAlias = async (alias: string, tenant: string) => {
      const { status, json } = await server.ask(
        `GET /templates/aliases/${encodeURIComponent(alias)}`,
        undefined,
        tenant,
      );
      return status === 200 ? json : status;
    };
    assert.deepEqual(await ofAlias("web", "acme"), { templateID: own.templateID, public: false });
    assert.deepEqual(await ofAlias("ACME/Web:default", "acme"), {
      templateID: own.templateID,
      public: false,
    });
    assert.deepEqual(await ofAlias(String(shared.names[0]), "acme"), {
      templateID: shared.templateID,
      public: true,
    });
    for (const alias of ["web:v9", "hidden", String(hidden.names[0]), "nothing"])
      assert.equal(await ofAlias(alias, "acme"), 404, alias);
    assert.equal(await ofAlias("web", "other"), 404);
    assert.equal(await ofAlias("a b", "acme"), 400);
  });

  it("what another tenant has published can be used, but not read or changed", async () => {
    const { templateID, buildID } = shared;
    const name = encodeURIComponent(String(shared.names[0]));
    const denied = "403 User does not have access to the template";
    for (const [route, body] of [
      [`GET /templates/${templateID}`],
      [`GET /templates/${name}/tags`],
      [`DELETE /templates/${templateID}`],
      [`PATCH /templates/${name}`, { public: false }],
      [`PATCH /v2/templates/${templateID}`, { public: false }],
      [`POST /v2/templates/${templateID}/builds/${buildID}`, START],
      [`GET /templates/${templateID}/builds/${buildID}/status`],
      [`GET /templates/${templateID}/builds/${buildID}/logs`],
      [`GET /templates/${templateID}/files/${"0".repeat(64)}`],
      ["POST /templates/tags", { target: templateID, tags: ["mine"] }],
      ["DELETE /templates/tags", { name: String(shared.names[0]), tags: ["mine"] }],
    ] as const)
      assert.equal(await refused(route, body), denied, route);
    const { json } = await server.ask<readonly Template[]>("GET /templates", undefined, "acme");
    assert.deepEqual(
      json.map(({ templateID: id }) => id),
      ["base", "code-interpreter-v1", own.templateID],
    );
  });

  it("tags are assigned, read, moved and removed", async () => {
    const assign = (target: string, ...tags: readonly string[]) =>
      server.ask<{ readonly buildID: string }>("POST /templates/tags", { target, tags }, "acme");
    const tagsOf = async () => {
      const { json } = await server.ask<readonly Tag[]>("GET /templates/web/tags", undefined, "acme");
      return Object.fromEntries(json.map(({ tag, buildID }) => [tag, buildID]));
    };
    const assigned = await assign("web", "v1", "stable", "v1");
    assert.deepEqual(
      [assigned.status, assigned.json],
      [201, { buildID: own.buildID, tags: ["v1", "stable"] }],
    );
    const next = await server.build("web", { tenant: "acme" });
    await server.ended(next, "acme");
    assert.deepEqual(await tagsOf(), { default: next.buildID, stable: own.buildID, v1: own.buildID });
    assert.equal((await assign(`acme/web:${next.buildID}`, "stable")).json.buildID, next.buildID);
    assert.equal((await assign(`${own.templateID}:v1`, "default")).json.buildID, own.buildID);
    assert.deepEqual(await tagsOf(), { default: own.buildID, stable: next.buildID, v1: own.buildID });
    const removed = await server.ask(
      "DELETE /templates/tags",
      { name: "web", tags: ["v1", "never"] },
      "acme",
    );
    assert.deepEqual([removed.status, removed.text], [204, ""]);
    assert.deepEqual(await tagsOf(), { default: own.buildID, stable: next.buildID });
  });

  it("wrong requests for tags are refused with E2B's texts", async () => {
    const many = Array.from({ length: 101 }, (_, index) => `t${index}`);
    for (const [route, body, message] of [
      ["POST", { target: "web", tags: [] }, "400 At least one tag is required"],
      ["POST", { target: "we b", tags: ["a"] }, "400 Invalid target template format: we b"],
      ["POST", { target: "a:b:c", tags: ["a"] }, "400 Invalid target template format: a:b:c"],
      ["POST", { target: "web", tags: ["bad tag"] }, "400 Invalid tag: bad tag"],
      ["POST", { target: "web", tags: [NOWHERE] }, `400 Invalid tag: ${NOWHERE}`],
      ["POST", { target: "web", tags: many }, "400 a template may have 100 tags"],
      ["POST", { target: "web:v7", tags: ["a"] }, "404 Template 'web' with tag 'v7' not found"],
      [
        "POST",
        { target: `web:${hidden.buildID}`, tags: ["a"] },
        `404 Template 'web' with tag '${hidden.buildID}' not found`,
      ],
      ["POST", { target: "nothing", tags: ["a"] }, "404 template 'nothing' not found"],
      ["POST", { target: hidden.templateID, tags: ["a"] }, `404 template '${hidden.templateID}' not found`],
      ["DELETE", { name: "web", tags: ["default"] }, "400 Cannot delete the 'default' tag"],
      ["DELETE", { name: "web", tags: [] }, "400 At least one tag is required"],
      ["DELETE", { name: "nothing", tags: ["a"] }, "404 template 'nothing' not found"],
    ] as const)
      assert.equal(await refused(`${route} /templates/tags`, body), message);
    for (const body of [
      {},
      { target: 1, tags: ["a"] },
      { target: "web", tags: [1] },
      "[",
      { target: "web", tags: "a" },
    ])
      assert.match(await refused("POST /templates/tags", body), /^400 /);
  });

  it("a name that a snapshot has is taken", async () => {
    const { record } = await server.sandboxes
      .of("acme")
      .create({ template: "web", timeoutMs: 9e4, secure: false });
    await server.resolve(Snapshots).of("acme").take(record.id, "saved:v1");
    assert.equal(await refused("POST /v3/templates", { name: "saved" }), "409 Alias 'saved' is already used");
    await server.sandboxes.kill(record.id);
  });

  it("a template is published and hidden again", async () => {
    const isPublic = async () =>
      (await server.ask<Template>("GET /templates/web", undefined, "acme")).json["public"];
    const first = await server.ask("PATCH /v2/templates/web", { public: true }, "acme");
    assert.deepEqual([first.status, first.json], [200, { names: ["acme/web"] }]);
    assert.equal(await isPublic(), true);
    const older = await server.ask(`PATCH /templates/${own.templateID}`, { public: false }, "acme");
    assert.deepEqual([older.status, older.text], [200, "null"]);
    assert.equal(await isPublic(), false);
    assert.equal((await server.ask("PATCH /v2/templates/web", {}, "acme")).status, 200);
    assert.match(
      await refused("PATCH /v2/templates/web", { public: "yes" }),
      /^400 validation error: public/,
    );
  });

  it("a template in use is not deleted; a deleted one frees its alias", async () => {
    const requested = await server.build("doomed:v1", { tenant: "acme" });
    await server.ended(requested, "acme");
    const wanted = { template: "doomed:v1", timeoutMs: 9e4, secure: false };
    const { record } = await server.sandboxes.of("acme").create(wanted);
    const text = "400 cannot delete template 'doomed' because there are running sandboxes using it";
    assert.equal(await refused("DELETE /templates/doomed"), text);
    await server.sandboxes.kill(record.id);
    const { json: waiting } = await server.ask<Requested>(
      "POST /v3/templates",
      { name: "doomed:v2" },
      "acme",
    );
    assert.equal(await refused("DELETE /templates/doomed%3Av1"), "404 template 'doomed:v1' not found");
    const { status, text: body } = await server.ask("DELETE /templates/doomed", undefined, "acme");
    assert.deepEqual([status, body], [204, ""]);
    assert.equal(await refused("DELETE /templates/doomed"), "404 template 'doomed' not found");
    const path = `/templates/${waiting.templateID}/builds/${waiting.buildID}`;
    assert.match(await refused(`POST /v2${path}`, START), /^404 /);
    await assert.rejects(server.sandboxes.of("acme").create(wanted), {
      message: "template 'doomed' not found",
    });
    const { json: again } = await server.ask<Requested>("POST /v3/templates", { name: "doomed" }, "acme");
    assert.notEqual(again.templateID, requested.templateID);
  });
});

describe("lists of templates", () => {
  const START_MS = Date.UTC(2026, 0, 1);

  it("have the configured ones and one's own, in both orders, and count sandboxes", async () => {
    const clock = fakeClock(START_MS);
    await using server = await templatesServer({
      clock,
      memory: { defaultLimits: { cpuCount: 1, memoryMiB: 256, diskMiB: 2048, processes: 64 } },
    });
    const requested: Requested[] = [];
    for (const name of ["one", "two", "three"]) {
      await clock.advance(1000);
      requested.push(await server.build(name));
      await server.ended(requested.at(-1) as Requested);
    }
    await clock.advance(1000);
    const [first] = requested;
    for (let count = 0; count < 2; count += 1)
      await server.sandboxes.create({ template: "one", timeoutMs: 9e4, secure: false });
    const { json: rebuilt } = await server.ask<Requested>("POST /v3/templates", {
      name: "one",
      memoryMB: 2048,
    });
    const ids = requested.map(({ templateID }) => templateID);
    const { json: listed } = await server.ask<readonly Template[]>("GET /templates?teamID=default");
    assert.deepEqual(
      listed.map(({ templateID }) => templateID),
      ["base", "code-interpreter-v1", ...ids],
    );
    const at = (second: number) => new Date(START_MS + second * 1000).toISOString();
    assert.deepEqual(listed[2], {
      templateID: first?.templateID,
      buildID: first?.buildID,
      public: false,
      names: ["default/one"],
      aliases: ["one"],
      cpuCount: 2,
      memoryMB: 1024,
      diskSizeMB: 2048,
      createdAt: at(1),
      updatedAt: at(4),
      createdBy: null,
      lastSpawnedAt: at(4),
      spawnCount: 2,
      buildCount: 2,
      buildStatus: "waiting",
      envdVersion: "0.6.13",
    });
    const paged: string[] = [];
    let query = "limit=2";
    for (let pages = 0; query !== "" && pages < 5; pages += 1) {
      const { headers, json } = await server.ask<readonly Template[]>(`GET /v2/templates?${query}`);
      paged.push(...json.map(({ templateID }) => templateID));
      const token = headers.get("x-next-token");
      query = token === null ? "" : `limit=2&nextToken=${token}`;
    }
    assert.deepEqual(paged, [...ids.toReversed(), "base", "code-interpreter-v1"]);
    const detail = await server.ask<Template & { readonly builds: readonly Template[] }>(
      "GET /templates/one?limit=1",
    );
    assert.deepEqual(detail.json.builds, [
      {
        buildID: rebuilt.buildID,
        status: "waiting",
        createdAt: at(4),
        updatedAt: at(4),
        cpuCount: 2,
        memoryMB: 2048,
        diskSizeMB: 2048,
        envdVersion: "0.6.13",
      },
    ]);
    const token = detail.headers.get("x-next-token");
    const rest = await server.ask<Template & { readonly builds: readonly Template[] }>(
      `GET /templates/one?limit=1&nextToken=${token}`,
    );
    assert.deepEqual(
      rest.json.builds.map(({ buildID, status, finishedAt }) => [buildID, status, finishedAt]),
      [[first?.buildID, "ready", at(1)]],
    );
    assert.equal(rest.headers.get("x-next-token"), null);
    for (const bad of [
      "GET /templates/one?nextToken=x",
      "GET /v2/templates?nextToken=%00",
      "GET /v2/templates?limit=0",
    ])
      assert.equal((await server.ask(bad)).status, 400, bad);
    const named = await server.ask<readonly Template[]>("GET /v2/sandboxes?template=one");
    assert.deepEqual(
      named.json.map(({ templateID, alias }) => [templateID, alias]),
      Array.from({ length: 2 }, () => [first?.templateID, "one"]),
    );
  });
});
