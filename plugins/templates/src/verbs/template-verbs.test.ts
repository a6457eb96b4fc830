import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it, type TestContext } from "node:test";
import { Backends } from "@coppice/core/backend";
import { fakeClock, runVerb } from "@coppice/core/testing";
import { BuildFailure } from "../model/build-record.js";
import { parseLock } from "../model/contents-lock.js";
import { SERVER } from "../model/template-record.js";
import { plugin } from "../plugin.js";
import { TemplatesStore } from "../store/templates-store.js";
import { START, templatesServer } from "../testing/templates-server.js";
import { templatesConfig } from "../templates-config.js";

const LIMITS = { cpuCount: 1, memoryMiB: 256, diskMiB: undefined };

interface Ended {
  readonly code: number;
  readonly printed: readonly string[];
  readonly rows: readonly (readonly string[])[];
}

async function open(context: TestContext) {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-verbs-"));
  context.after(() => rm(dataDir, { recursive: true }));
  const server = await templatesServer({ dataDir });
  /** Runs a verb beside the server. */
  let recipes: Readonly<Record<string, unknown>> = {};
  const run = async (name: string, ...args: readonly string[]): Promise<Ended> => {
    const printed: string[] = [];
    const rows: (readonly string[])[] = [];
    const context = {
      config: templatesConfig.parse({ recipes }),
      clock: fakeClock(Date.now()),
      dataDir: () => join(dataDir, "templates"),
      server: () => assert.fail("it speaks to no server"),
      whileStopped: async <T>(use: (backends: Backends) => Promise<T>) => use(server.resolve(Backends)),
      print: (line: string) => void printed.push(line),
      printTable: (_: unknown, table: readonly (readonly string[])[]) => void rows.push(...table),
    };
    const code = await runVerb(plugin, ["template", name, ...args], context);
    return { code, printed, rows };
  };
  const { images } = server.backend.backend;
  assert.ok(images);
  const setRecipes = (given: typeof recipes): void => void (recipes = given);
  return { dataDir, server, run, images, setRecipes };
}

describe("coppice template", () => {
  it("list shows the templates of all tenants, and inspect one with its builds and tags", async (context) => {
    const { dataDir, server, run } = await open(context);
    await using _server = server;
    server.builder.script = async (request, surroundings) => {
      const result = await server.builder.make(request, surroundings);
      surroundings.layers.describe(result.image, ["deb bash 5.2.15-2", "pip numpy 2.4.6"]);
      return result;
    };
    const web = await server.build("web:v1", { tenant: "acme" });
    await server.ended(web, "acme");
    server.builder.script = () => {
      throw new BuildFailure("no luck", "1");
    };
    const failed = await server.build("web:v1", { tenant: "acme", start: { fromImage: "other" } });
    await server.ended(failed, "acme");
    await server.build("web", { tenant: "other" });
    using store = new TemplatesStore(join(dataDir, "templates"));
    const ofServer = { id: "base", owner: SERVER, namespace: SERVER, alias: "base", isPublic: false };
    const createdAtMs = Date.now() + 60_000;
    store.templates.insert({ ...ofServer, createdAtMs, updatedAtMs: createdAtMs });
    const { rows } = await run("list");
    assert.deepEqual(
      rows.map(([name, , tenant, access, builds, , size]) => [name, tenant, access, builds, size]),
      [
        ["acme/web", "acme", "private", "2", "1"],
        ["other/web", "other", "private", "1", "-"],
        ["base", "-", "public", "0", "-"],
      ],
    );
    const own = await run("list", "--tenant", "acme", "--json");
    assert.deepEqual(
      (JSON.parse(own.printed.join("")) as readonly Record<string, unknown>[]).map(({ id, newest }) => [
        id,
        newest,
      ]),
      [[web.templateID, "error"]],
    );
    const inspected = await run("inspect", "acme/web");
    const body = JSON.parse(inspected.printed.join("")) as {
      readonly tags: readonly object[];
      readonly builds: readonly Record<string, unknown>[];
    };
    assert.deepEqual(
      body.builds.map(({ id, state, reason }) => [id, state, reason]),
      [
        [failed.buildID, "error", { message: "no luck", step: "1" }],
        [web.buildID, "ready", undefined],
      ],
    );
    assert.equal(body.tags.length, 1);
    const ofTag = JSON.parse((await run("inspect", "acme/web:v1")).printed.join("")) as typeof body;
    assert.deepEqual(
      ofTag.builds.map(({ id }) => id),
      [web.buildID],
    );
    await assert.rejects(async () => run("inspect", "acme/web:none"), { reason: "build_not_found" });
    const contents = await run("inspect", "acme/web:v1", "--contents");
    assert.deepEqual(contents.printed, ["deb bash 5.2.15-2", "pip numpy 2.4.6"]);
    await assert.rejects(async () => run("inspect", "acme/web", "--contents"), { reason: "build_not_found" });
    await assert.rejects(async () => run("inspect", "web"), {
      code: "invalid_argument",
      message: "several tenants have a template 'web': name one of acme/web, other/web",
    });
    await assert.rejects(async () => run("inspect", "nothing"), { reason: "template_not_found" });
    await assert.rejects(async () => run("inspect"), { code: "commander.missingArgument" });
  });

  it("lock writes what recipes were built to beside them, and tells when a build differs from it", async (context) => {
    const { dataDir, server, run, setRecipes } = await open(context);
    await using _server = server;
    const path = join(dataDir, "recipe.yaml");
    setRecipes({ base: path, here: { from: { template: "base" } } });
    using store = new TemplatesStore(join(dataDir, "templates"));
    const base = { id: "base", owner: SERVER, namespace: SERVER, alias: "base", isPublic: false };
    store.templates.insert({ ...base, createdAtMs: 0, updatedAtMs: 0 });
    /** Makes a build with these packages the newest one. */
    const build = (id: string, contents: readonly string[]): void => {
      store.builds.add({ id, templateId: "base", backend: "memory", limits: LIMITS }, 0);
      store.builds.start(id, 0);
      const context = { user: "user", workdir: "/", environment: {} };
      store.images.add({ id, backend: "memory", tenant: SERVER });
      store.builds.finish(id, { image: id, context, start: undefined, bytes: 0 }, 0);
      store.images.describe(id, contents);
      store.tags.assign("base", "default", id, 0);
    };
    await assert.rejects(run("lock"), { reason: "build_not_found" });
    build("first", ["deb bash 5.1", "pip numpy 2.4.6"]);
    await assert.rejects(run("lock", "--check"), /there is no .*recipe\.lock/);
    assert.equal((await run("inspect", "base")).printed.join("").includes('"lock"'), false);
    const lock = join(dataDir, "recipe.lock");
    assert.deepEqual((await run("lock")).printed, [`${lock}: 2 packages`]);
    assert.deepEqual(parseLock(await readFile(lock, "utf8")).contents, ["deb bash 5.1", "pip numpy 2.4.6"]);
    assert.deepEqual(await run("lock", "--check", "base"), {
      code: 0,
      printed: [`${lock}: the same`],
      rows: [],
    });
    build("second", ["deb bash 5.2", "pip numpy 2.4.6"]);
    const differences = ["-deb bash 5.1", "+deb bash 5.2"];
    const checked = await run("lock", "--check");
    assert.deepEqual([checked.code, checked.printed], [1, [`${lock}: 2 differences`, ...differences]]);
    const inspected = JSON.parse((await run("inspect", "base")).printed.join("")) as {
      readonly lock: object;
    };
    assert.deepEqual(inspected.lock, { file: lock, differences });
    for (const name of ["here", "none", "constructor"])
      await assert.rejects(run("lock", name), { reason: "usage_invalid" });
  });

  it("logs prints the log of a build from a level on, and follows one until it ends", async (context) => {
    const { server, run } = await open(context);
    await using _server = server;
    const going = Promise.withResolvers<void>();
    server.builder.script = async (request, surroundings) => {
      surroundings.log({ level: "debug", message: "detail", step: "base" });
      surroundings.log({ level: "info", message: "first", step: "base" });
      await going.promise;
      surroundings.log({ level: "info", message: "last", step: "1" });
      if (request.base.kind === "image" && request.base.reference === "bad")
        throw new BuildFailure("bad", "1");
      return server.builder.make(request, surroundings);
    };
    const requested = await server.build("web");
    const following = run("logs", "web", "--follow");
    going.resolve();
    const followed = await following;
    assert.equal(followed.code, 0);
    assert.deepEqual(
      followed.printed.filter((line) => ["detail", "first", "last"].includes(line)),
      ["first", "last"],
    );
    const detailed = await run("logs", requested.buildID, "--level", "debug", "--json");
    const entries = detailed.printed.map((line) => JSON.parse(line) as Record<string, string>);
    assert.deepEqual(entries.map(({ level, message, step }) => [level, message, step]).slice(0, 2), [
      ["debug", "detail", "base"],
      ["info", "first", "base"],
    ]);
    await server.ended(await server.build("web:next", { start: { ...START, fromImage: "bad" } }));
    assert.equal((await run("logs", "web:next", "--follow")).code, 1);
    assert.equal((await run("logs", "web:next")).code, 0);
    await assert.rejects(run("logs", "web:none"), { reason: "build_not_found" });
    await assert.rejects(run("logs", "web", "--level", "loud"), { reason: "usage_invalid" });
  });

  it("tag and untag change the tags by which clients find builds", async (context) => {
    const { server, run } = await open(context);
    await using _server = server;
    const first = await server.build("web");
    await server.ended(first);
    await server.ended(await server.build("web"));
    const { templateID, buildID } = first;
    const tags = async () => {
      const { json } = await server.ask<readonly Record<string, string>[]>(
        `GET /templates/${templateID}/tags`,
      );
      return json.map((each) => [each["tag"], each["buildID"]]);
    };
    const [[, newest] = []] = await tags();
    assert.notEqual(newest, buildID);
    const tagged = await run("tag", `web:${buildID}`, "v1", "old", "v1");
    assert.deepEqual(tagged.printed, [
      `default/web:v1 is build ${buildID}`,
      `default/web:old is build ${buildID}`,
    ]);
    await run("tag", "default/web:old", "older");
    assert.deepEqual((await run("untag", "web", "old")).printed, ["default/web:old is removed"]);
    assert.deepEqual(await tags(), [
      ["default", newest],
      ["older", buildID],
      ["v1", buildID],
    ]);
    for (const [reason, verb, ...args] of [
      ["template_tag_not_found", "tag", "web:none", "v2"],
      ["template_reference_invalid", "tag", "web", "no tag"],
      ["template_build_invalid", "untag", "web", "default"],
    ] as const)
      await assert.rejects(async () => run(verb, ...args), { reason });
  });

  it("remove takes a template from clients, unless it is being built", async (context) => {
    const { server, run } = await open(context);
    await using _server = server;
    const { templateID } = await server.build("web");
    const going = Promise.withResolvers<void>();
    server.builder.script = async (request, surroundings) => {
      await going.promise;
      return server.builder.make(request, surroundings);
    };
    const again = await server.build("web");
    await assert.rejects(async () => run("remove", "web"), { reason: "template_in_use" });
    going.resolve();
    await server.ended(again);
    assert.deepEqual((await run("remove", templateID)).printed, ["template default/web is removed"]);
    assert.equal((await server.ask(`GET /templates/${templateID}`)).status, 404);
    await assert.rejects(async () => run("remove", "web"), { reason: "template_not_found" });
  });

  it("remove takes one of the configuration only when it is forced to", async (context) => {
    const { dataDir, server, run } = await open(context);
    await using _server = server;
    using store = new TemplatesStore(join(dataDir, "templates"));
    const base = { id: "base", owner: SERVER, namespace: SERVER, alias: "base", isPublic: true };
    store.templates.insert({ ...base, createdAtMs: Date.now(), updatedAtMs: Date.now() });
    await assert.rejects(async () => run("remove", "base"), {
      reason: "template_in_use",
      message:
        /one of this server's configuration: .* until the next start builds it again\. --force removes it$/,
    });
    assert.deepEqual((await run("remove", "base", "--force")).printed, ["template base is removed"]);
    assert.deepEqual((await run("list")).rows, []);
  });

  it("fsck tells what is lost and what is not needed, and gc removes the latter", async (context) => {
    const { server, run, images } = await open(context);
    const built = await server.build("web");
    await server.ended(built);
    await server.stop();
    assert.deepEqual((await run("fsck")).printed, ["0 lost, 0 not needed, 0 unknown"]);
    const source = { layout: "/nowhere", reference: "image", maxBytes: 1, maxEntries: 1 };
    await images.unpack("mstray", source, new AbortController().signal);
    const stray = await run("fsck");
    assert.deepEqual(stray.rows, [["not needed", "mstray", "memory", ""]]);
    assert.equal(stray.code, 0);
    assert.deepEqual((await run("gc")).printed, ["removed mstray of memory"]);
    for (const image of await images.list()) await images.remove(image);
    const lost = await run("fsck", "--json");
    assert.equal(lost.code, 1);
    const findings = JSON.parse(lost.printed.join("")) as readonly {
      readonly finding: string;
      readonly users: readonly string[];
    }[];
    assert.ok(findings.length > 0 && findings.every(({ finding }) => finding === "lost"));
    assert.ok(findings.some(({ users }) => users.includes(`default/web:${built.buildID}`)));
    // It has changed nothing.
    assert.equal((await run("fsck")).code, 1);
  });
});
