import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Snapshots } from "@coppice/core";
import { fakeClock, memoryBackend, startTestServer, type TestServer } from "@coppice/core/testing";
import sandboxApi from "@coppice/plugin-sandbox-api";
import { plugin as templates } from "../plugin.js";

const START = Date.UTC(2026, 0, 1);
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}$/;

interface Template {
  readonly templateID: string;
  readonly buildID: string;
  readonly spawnCount: number;
  readonly cpuCount: number;
  readonly memoryMB: number;
  readonly diskSizeMB: number;
  readonly builds?: readonly { readonly buildID: string; readonly status: string }[];
}

const defaultLimits = { cpuCount: 1, memoryMiB: 256, diskMiB: 2048, processes: 64 };

describe("A.6 templates", () => {
  let server: TestServer;

  before(async () => {
    server = await startTestServer({
      clock: fakeClock(START),
      plugins: [
        [memoryBackend({ snapshots: {}, defaultLimits }), {}],
        [sandboxApi, {}],
        [templates, {}],
      ],
      server: {
        sandboxes: {
          templates: {
            "base": { aliases: ["default", "team/base"], limits: { cpuCount: 1.5, memoryMiB: 512 } },
            "code-interpreter-v1": {},
            "acme/tools": {},
          },
        },
      },
    });
  });
  after(() => server.stop());

  async function ask<Body>(route: string, body?: object) {
    const [method = "", path = ""] = route.split(" ");
    const response = await fetch(server.url + path, {
      method,
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    return { status: response.status, headers: response.headers, json: JSON.parse(text || "{}") as Body };
  }

  it("GET /templates and /templates/{id}: configured templates, and their use", async () => {
    const { record } = await server.sandboxes.create({
      template: "team/base",
      timeoutMs: undefined,
      secure: true,
    });
    const { json: listed } = await ask<readonly Template[]>("GET /templates");
    assert.deepEqual(
      listed.map(({ templateID, spawnCount }) => [templateID, spawnCount]),
      [
        ["base", 1],
        ["code-interpreter-v1", 0],
        ["acme/tools", 0],
      ],
    );
    const { buildID, ...first } = listed[0] ?? { buildID: "" };
    assert.deepEqual([listed[1]?.cpuCount, listed[1]?.memoryMB, listed[1]?.diskSizeMB], [1, 256, 2048]);
    assert.match(buildID, UUID);
    const since = new Date(START).toISOString();
    assert.deepEqual(first, {
      templateID: "base",
      public: true,
      names: ["base", "default", "team/base"],
      aliases: ["base", "default", "team/base"],
      cpuCount: 2,
      memoryMB: 512,
      diskSizeMB: 2048,
      createdAt: since,
      updatedAt: since,
      createdBy: null,
      lastSpawnedAt: since,
      spawnCount: 1,
      buildCount: 1,
      buildStatus: "ready",
      envdVersion: "0.6.13",
    });
    for (const reference of ["base", "default", "team%2Fbase", "base:default"]) {
      const { json } = await ask<Template>(`GET /templates/${reference}`);
      assert.equal(json.templateID, "base", reference);
      assert.deepEqual(
        json.builds?.map((build) => [build.buildID, build.status]),
        [[buildID, "ready"]],
      );
    }
    assert.equal((await ask("GET /templates/nope")).status, 404);
    assert.equal((await ask("GET /templates/a%20b")).status, 400);
    await server.sandboxes.kill(record.id);
  });

  it("GET /v2/templates: page by page", async () => {
    const seen: string[] = [];
    let query = "limit=2";
    for (let pages = 0; query !== "" && pages < 3; pages += 1) {
      const { headers, json } = await ask<readonly Template[]>(`GET /v2/templates?${query}`);
      seen.push(...json.map(({ templateID }) => templateID));
      const nextToken = headers.get("x-next-token");
      query = nextToken === null ? "" : `limit=2&nextToken=${nextToken}`;
    }
    assert.deepEqual(seen, ["acme/tools", "base", "code-interpreter-v1"]);
    for (const [bad, message] of [
      ["limit=0", /^validation error: limit/],
      ["nextToken=%00", /^Invalid next token$/],
    ] as const) {
      const { status, json } = await ask<{ readonly message: string }>(`GET /v2/templates?${bad}`);
      assert.equal(status, 400);
      assert.match(json.message, message);
    }
  });

  it("aliases and tags, of snapshots too; sandboxes are listed by any name of their template", async () => {
    const source = await server.sandboxes.create({ template: "base", timeoutMs: undefined, secure: true });
    const snapshots = server.resolve(Snapshots).of("default");
    const { id } = await snapshots.take(source.record.id, "saved:v2");
    const plain = await snapshots.take(source.record.id, "plain");
    const made = await server.sandboxes.create({ template: "plain", timeoutMs: undefined, secure: true });
    for (const [alias, answer] of [
      ["team%2Fbase", { templateID: "base", public: true }],
      ["BASE", { templateID: "base", public: true }],
      ["saved%3Av2", { templateID: id, public: false }],
      ["plain", { templateID: plain.id, public: false }],
    ] as const) {
      assert.deepEqual((await ask(`GET /templates/aliases/${alias}`)).json, answer, alias);
    }
    for (const alias of ["nope", "base%3Av9", "saved"]) {
      assert.equal((await ask(`GET /templates/aliases/${alias}`)).status, 404, alias);
    }
    const tagsOf = async (name: string) => {
      const { json } = await ask<readonly { tag: string; buildID: string }[]>(`GET /templates/${name}/tags`);
      for (const { buildID } of json) assert.match(buildID, UUID);
      return json.map(({ tag }) => tag);
    };
    assert.deepEqual(await tagsOf("base"), ["default"]);
    assert.deepEqual(await tagsOf("saved%3Av2"), ["v2"]);
    const listed = async (template: string) => {
      const { json } = await ask<readonly { sandboxID: string }[]>(`GET /v2/sandboxes?template=${template}`);
      return json.map(({ sandboxID }) => sandboxID);
    };
    assert.deepEqual(await listed("default"), await listed("base"));
    assert.deepEqual(await listed("plain"), [made.record.id]);
    assert.deepEqual(await listed(plain.id), [made.record.id]);
    assert.deepEqual(await listed("nope"), []);
    for (const sandbox of [source, made]) await server.sandboxes.kill(sandbox.record.id);
  });

  it("are not changed or tagged, and nothing is built where no backend has images", async () => {
    for (const [route, body] of [
      ["PATCH /templates/base", { public: false }],
      ["PATCH /v2/templates/default", {}],
      ["DELETE /templates/base", undefined],
      ["DELETE /templates/team%2Fbase", undefined],
      ["POST /templates/tags", { target: "base", tags: ["v1"] }],
      ["DELETE /templates/tags", { name: "default:default", tags: ["v1"] }],
    ] as const) {
      const { status, json } = await ask<{ readonly code: number; readonly message: string }>(route, body);
      assert.deepEqual([status, json.code], [403, 403], route);
      assert.match(
        json.message,
        /^template '[a-z/]+' is one of this server's configuration \(sandboxes\.templates\)/,
      );
    }
    for (const route of ["POST /v3/templates", `GET /templates/base/files/${"0".repeat(64)}`]) {
      const body = route.startsWith("POST") ? { name: "mine" } : undefined;
      const { status, json } = await ask<{ readonly code: number; readonly message: string }>(route, body);
      assert.deepEqual([status, json.code], [400, 400], route);
      assert.match(json.message, /^this server does not build templates by API, .*sandboxes\.templates/);
    }
  });
});
