import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type Requested, START, templatesServer, type TemplatesServer } from "../testing/templates-server.js";

interface WithProgress {
  readonly status: string;
  readonly progress?: object;
}

/** What `coppice template` asks beyond E2B's API. */
describe("builds of the command line", () => {
  let server: TemplatesServer;
  let release = Promise.withResolvers<void>();

  before(async () => {
    server = await templatesServer({
      settings: { maxCpuCount: 8, maxMemory: "2GiB" },
      script: async ({ base }, { report, signal }, make) => {
        const made = await make();
        if (base.kind === "image" && base.reference === "slow") {
          report?.({ phase: "pulling", done: 1, total: 2 });
          signal.addEventListener("abort", () => release.reject(signal.reason as Error));
          await release.promise;
        }
        const limits = { cpuCount: 16, memoryMiB: 512 };
        return { ...made, context: { ...made.context, limits } };
      },
    });
  });
  after(() => server.stop());

  const request = async (): Promise<Requested & { readonly path: string }> => {
    const { json } = await server.ask<Requested>("POST /v3/templates", { name: "own" });
    return { ...json, path: `/templates/${json.templateID}/builds/${json.buildID}` };
  };

  it("a build that restores a template has its limits, as far as the server allows them", async () => {
    for (const [restore, limits] of [
      [{ limits: true }, { cpuCount: 8, memoryMiB: 512 }],
      [{ limits: false }, { cpuCount: 2, memoryMiB: 1024 }],
      [undefined, { cpuCount: 2, memoryMiB: 1024 }],
    ] as const) {
      const asked = await server.build("own", { start: { ...START, restore } });
      const { status, logEntries } = await server.ended(asked);
      assert.equal(status, "ready");
      const warned = logEntries.filter(({ level }) => level === "warn").map(({ message }) => message);
      assert.deepEqual(
        warned,
        restore?.limits === true ? ["The template has 16 CPUs, of which this server allows 8"] : [],
      );
      const { record } = await server.sandboxes.create({ template: "own", timeoutMs: 9e4, secure: false });
      assert.deepEqual(record.limits, limits);
      await server.sandboxes.kill(record.id);
    }
  });

  it("the status has how far a pull is, and a build can be cancelled at any time", async () => {
    const { path, ...asked } = await request();
    await server.ask(`POST /v2${path}`, { fromImage: "slow" });
    let { json } = await server.ask<WithProgress>(`GET ${path}/status`);
    while (json.progress === undefined) ({ json } = await server.ask<WithProgress>(`GET ${path}/status`));
    assert.deepEqual(json.progress, { phase: "pulling", done: 1, total: 2 });
    assert.equal((await server.ask(`POST ${path}/cancel`, undefined, "other")).status, 404);
    for (let times = 0; times < 2; times += 1)
      assert.equal((await server.ask(`POST ${path}/cancel`)).status, 204);
    const ended = await server.ended(asked);
    assert.deepEqual([ended.status, ended.reason?.message], ["error", "build was cancelled"]);
    release = Promise.withResolvers();

    const waiting = await request();
    assert.equal((await server.ask(`POST ${waiting.path}/cancel`)).status, 204);
    assert.equal((await server.ask(`POST /v2${waiting.path}`, START)).status, 400);
  });

  it("only an administrator can have Debian's packages installed on the host", async () => {
    const fromDebian = { suite: "trixie", packages: ["curl"] };
    const { path } = await request();
    const refused = await fetch(`${server.url}/v2${path}`, {
      method: "POST",
      headers: { "x-scope": "write" },
      body: JSON.stringify({ fromDebian }),
    });
    assert.equal(refused.status, 403);
    for (const body of [
      { fromDebian, fromImage: "a" },
      { fromDebian: { suite: "--help" } },
      { fromDebian: { suite: "trixie", packages: ["a b"] } },
    ])
      assert.equal((await server.ask(`POST /v2${path}`, body)).status, 400);
    assert.equal((await server.ask(`POST /v2${path}`, { fromDebian })).status, 202);
    assert.deepEqual(server.builder.requests.at(-1)?.base, { kind: "debian", ...fromDebian });
  });
});
