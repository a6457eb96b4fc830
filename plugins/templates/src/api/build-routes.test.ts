import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { Tenants } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { BuildFailure } from "../model/build-record.js";
import {
  type LogEntryBody,
  type Requested,
  START,
  type Status,
  templatesServer,
  type TemplatesServer,
} from "../testing/templates-server.js";

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const NOWHERE = "00000000-0000-4000-8000-000000000000";

interface Refusal {
  readonly code: number;
  readonly message: string;
}

describe("builds of templates", () => {
  let server: TemplatesServer;

  before(async () => {
    server = await templatesServer({ settings: { maxSteps: 3, maxLog: "8KiB" } });
  });
  after(() => server.stop());

  const messages = (entries: readonly LogEntryBody[]) => entries.map(({ message }) => message);

  it("a build is requested, started, and ready; its template makes sandboxes", async () => {
    const { status, json } = await server.ask<Requested>("POST /v3/templates", {
      name: "Web:v1",
      tags: ["stable", "v1"],
      cpuCount: 4,
      memoryMB: 512,
      teamID: "default",
    });
    const { templateID, buildID } = json;
    assert.equal(status, 202);
    assert.match(templateID, /^[a-z0-9]{20}$/);
    assert.match(buildID, UUID);
    assert.deepEqual(json, {
      templateID,
      buildID,
      public: false,
      names: ["default/web"],
      aliases: ["web"],
      tags: ["v1", "stable"],
    });
    const path = `/templates/${templateID}/builds/${buildID}`;
    const waiting = await server.ask<Status>(`GET ${path}/status`);
    assert.deepEqual(waiting.json, { templateID, buildID, status: "waiting", logEntries: [], logs: [] });
    await assert.rejects(server.sandboxes.create({ template: "web:v1", timeoutMs: 9e4, secure: false }), {
      message: "tag 'v1' does not exist for template 'web'",
    });
    const started = await server.ask(`POST /v2${path}`, {
      fromImage: "debian:12",
      fromTemplate: "",
      fromImageRegistry: { type: "registry", username: "u", password: "p" },
      force: true,
      steps: [
        { type: "RUN", args: ["true", "root"], forceUpload: true, gzip: false },
        {
          type: "copy",
          args: ["a", "b", "", ""],
          filesHash: "a".repeat(64),
          force: true,
          resolveSymlinks: null,
        },
        { type: "WORKDIR" },
      ],
      startCmd: "serve",
      readyCmd: "",
    });
    assert.deepEqual([started.status, started.text], [202, ""]);
    const ended = await server.ended(json);
    assert.deepEqual([ended.status, ended.reason], ["ready", undefined]);
    assert.deepEqual(messages(ended.logEntries), [
      `Building template ${templateID}/${buildID}`,
      "[base] FROM it",
      "Build finished, took 0s",
    ]);
    assert.deepEqual(server.builder.requests.at(-1), {
      templateId: templateID,
      buildId: buildID,
      tenant: "default",
      backend: "memory",
      limits: { cpuCount: 4, memoryMiB: 512 },
      base: {
        kind: "image",
        reference: "debian:12",
        credentials: { type: "registry", username: "u", password: "p" },
      },
      force: true,
      isReproducible: false,
      steps: [
        { type: "RUN", args: ["true", "root"], filesHash: undefined, force: false },
        { type: "copy", args: ["a", "b", "", ""], filesHash: "a".repeat(64), force: true },
        { type: "WORKDIR", args: [], filesHash: undefined, force: false },
      ],
      startCommand: "serve",
      readyCommand: undefined,
    });
    for (const template of ["web:v1", "default/web:stable", `${templateID}:${buildID}`, `WEB:${buildID}`]) {
      const { record } = await server.sandboxes.create({ template, timeoutMs: 9e4, secure: false });
      assert.deepEqual([record.template, record.build?.id], [templateID, buildID], template);
      assert.deepEqual(record.limits, { cpuCount: 4, memoryMiB: 512 });
      assert.match(record.build?.image.id ?? "", /^m[a-z0-9]{20}$/);
      await server.sandboxes.kill(record.id);
    }
    const again = await server.ask<Refusal>(`POST /v2${path}`, START);
    assert.deepEqual([again.status, again.json.message], [400, "build is not in waiting state"]);
  });

  it("the same name again is a build of the same template, and `alias` is an older word for it", async () => {
    const first = await server.build("again");
    const second = await server.ask<Requested>("POST /v3/templates", { alias: "again", name: null });
    assert.equal(second.json.templateID, first.templateID);
    assert.notEqual(second.json.buildID, first.buildID);
    assert.deepEqual(second.json.tags, ["default"]);
    await server.ended(first);
  });

  it("requests that are wrong are refused with E2B's texts", async () => {
    const { templateID } = await server.build("taken");
    for (const [body, code, message] of [
      [{}, 400, /^Name is required$/],
      [{ name: "", alias: "" }, 400, /^Name is required$/],
      [{ name: "a b" }, 400, /^Invalid name: invalid template ID: a b$/],
      [{ name: "../../etc/passwd" }, 400, /^Invalid name: invalid template ID: \.\.\/\.\.\/etc\/passwd$/],
      [{ name: "a:b:c" }, 400, /^Invalid name: invalid template ID: a:b:c$/],
      [{ name: "other/web" }, 400, /^namespace 'other' must match your team 'default'$/],
      [{ name: "ok", tags: ["bad tag"] }, 400, /^Invalid tag: bad tag$/],
      [{ name: `ok:${NOWHERE}` }, 400, /^Invalid tag: 0{8}-/],
      [{ name: "ok", tags: [NOWHERE] }, 400, /^Invalid tag: 0{8}-/],
      [{ name: "ok:" }, 400, /^Invalid tag: $/],
      [{ name: templateID }, 409, /^Alias '[a-z0-9]{20}' is already used$/],
      [{ name: "base" }, 403, /^template 'base' is one of this server's configuration/],
      [{ name: "ok", cpuCount: 0 }, 400, /^validation error/],
      [{ name: "ok", cpuCount: 1.5 }, 400, /^validation error/],
      [{ name: "ok", cpuCount: 34 }, 400, /^CPU count can't be higher than 32 /],
      [{ name: "ok", cpuCount: 3 }, 400, /^CPU count must be 1 or an even number$/],
      [{ name: "ok", memoryMB: 127 }, 400, /^validation error/],
      [{ name: "ok", memoryMB: 129 }, 400, /^Memory must be divisible by 2$/],
      [{ name: "ok", memoryMB: 8194 }, 400, /^Memory can't be higher than 8192 MiB/],
      [{ name: "ok", minFreeDiskMb: -1 }, 400, /^validation error/],
      [{ name: "ok", minFreeDiskMb: 30_000 }, 400, /^Free disk can't be higher than 20480 MiB$/],
      [{ name: ["ok"] }, 400, /^validation error: name/],
      [{ name: "ok", tags: "v1" }, 400, /^validation error: tags/],
      [
        { name: "ok", tags: Array.from({ length: 4_500 }, (_, index) => `t${index}`) },
        400,
        /^validation error: tags/,
      ],
      [
        { name: "ok", tags: Array.from({ length: 101 }, (_, index) => `t${index}`) },
        400,
        /^a template may have 100 tags$/,
      ],
      [{ name: "x".repeat(2000) }, 400, /^validation error: name/],
      [{ name: "x".repeat(300) }, 400, /^Invalid name: invalid template ID: x{100}…$/],
      [{ name: "ok", filler: "x".repeat(5 * 2 ** 20) }, 413, /larger than/],
      ["[1", 400, /^Error when parsing request: /],
      ["null", 400, /^validation error/],
    ] as const) {
      const told = JSON.stringify(body).slice(0, 60);
      const { status, json } = await server.ask<Refusal>("POST /v3/templates", body);
      assert.deepEqual([status, json.code], [code, code], `${told}: ${json.message}`);
      assert.match(json.message, message, told);
    }
    const { json: listed } =
      await server.ask<readonly { readonly aliases: readonly string[] }[]>("GET /templates");
    assert.ok(!listed.some(({ aliases }) => aliases.includes("ok")), "a refused request makes no template");
  });

  it("starts that are wrong are refused, and leave the build waiting", async () => {
    const { json: requested } = await server.ask<Requested>("POST /v3/templates", { name: "starts" });
    const { templateID, buildID } = requested;
    const path = `/v2/templates/${templateID}/builds/${buildID}`;
    for (const [route, body, code, message] of [
      [path, {}, 400, /^must specify either fromImage or fromTemplate$/],
      [path, { fromImage: "a", fromTemplate: "b" }, 400, /^must specify either fromImage or fromTemplate$/],
      [path, { fromImage: 3 }, 400, /^validation error: fromImage/],
      [path, { fromImage: "a", steps: {} }, 400, /^validation error: steps/],
      [path, { fromImage: "a", steps: [{}] }, 400, /^validation error: steps\.0\.type/],
      [
        path,
        { fromImage: "a", steps: [{ type: "RUN", args: [1] }] },
        400,
        /^validation error: steps\.0\.args/,
      ],
      [path, { fromImage: "a", steps: [{ type: "COPY", filesHash: "../x" }] }, 400, /filesHash/],
      [path, { fromImage: "a", steps: Array.from({ length: 4 }, () => ({ type: "RUN" })) }, 400, /steps/],
      [
        path,
        { fromImage: "a", fromImageRegistry: { type: "ftp" } },
        400,
        /^validation error: fromImageRegistry/,
      ],
      [path, "", 400, /^Error when parsing request/],
      [`/v2/templates/${templateID}/builds/nope`, START, 400, /^Invalid build ID: nope$/],
      [`/v2/templates/${templateID}/builds/${NOWHERE}`, START, 404, /has no build/],
      [`/v2/templates/${"z".repeat(20)}/builds/${buildID}`, START, 404, /^template 'z{20}' not found$/],
    ] as const) {
      const { status, json } = await server.ask<Refusal>(`POST ${route}`, body);
      assert.deepEqual([status, json.code], [code, code], json.message);
      assert.match(json.message, message);
    }
    const { status } = await server.ask(`POST ${path}`, START);
    assert.equal(status, 202);
    await server.ended(requested);
  });

  it("a failed build tells why and where; a fault of the server hides it", async () => {
    server.builder.script = (_, { log }) => {
      log({ level: "info", message: "[builder 1/2] RUN false", step: "1" });
      log({ level: "info", message: "[builder 1/2] [stderr]: boo", step: "1" });
      throw new BuildFailure("failed to run command 'false': exit status 1", "1");
    };
    const failed = await server.ended(await server.build("fails"));
    assert.equal(failed.status, "error");
    assert.deepEqual(
      [failed.reason?.message, failed.reason?.step],
      ["failed to run command 'false': exit status 1", "1"],
    );
    assert.deepEqual(messages(failed.reason?.logEntries ?? []), [
      "[builder 1/2] RUN false",
      "[builder 1/2] [stderr]: boo",
    ]);
    assert.equal((await server.ask<Refusal>("GET /templates/aliases/fails%3Adefault")).status, 404);
    server.builder.script = () => {
      throw new Error("/secret/path");
    };
    const broken = await server.ended(await server.build("breaks"));
    const text = "An internal error occurred. Please try again or contact support with the build ID.";
    assert.deepEqual(broken.reason, { message: text, logEntries: [] });
    server.builder.script = (request, surroundings) => server.builder.make(request, surroundings);
  });

  it("the log is read in pages, by level, from an offset or a time, also before the build has ended", async () => {
    const running = Promise.withResolvers<void>();
    const goOn = Promise.withResolvers<void>();
    server.builder.script = async (request, surroundings) => {
      const { log } = surroundings;
      for (let index = 0; index < 30; index += 1)
        log({ level: index % 3 === 0 ? "debug" : "info", message: `line ${index}`, step: "base" });
      running.resolve();
      await goOn.promise;
      log({ level: "warn", message: "careful", step: undefined });
      return server.builder.make(request, surroundings);
    };
    const requested = await server.build("logs");
    const path = `GET /templates/${requested.templateID}/builds/${requested.buildID}`;
    await running.promise;
    const { json: early } = await server.ask<Status>(`${path}/status?logsOffset=2&limit=3`);
    assert.deepEqual(
      [early.status, messages(early.logEntries)],
      ["building", ["line 2", "line 3", "line 4"]],
    );
    const { json: infos } = await server.ask<Status>(`${path}/status?logsOffset=2&limit=2&level=info`);
    assert.deepEqual(messages(infos.logEntries), ["line 4", "line 5"]);
    assert.equal(infos.logEntries[0]?.step, "base");
    goOn.resolve();
    await server.ended(requested);
    const logs = async (query: string) =>
      messages(
        (await server.ask<{ readonly logs: readonly LogEntryBody[] }>(`${path}/logs${query}`)).json.logs,
      );
    assert.equal((await logs("")).length, 34);
    assert.deepEqual(await logs("?level=warn"), ["careful"]);
    assert.deepEqual(await logs("?direction=backward&limit=1&source=persistent"), [
      "Build finished, took 0s",
    ]);
    assert.deepEqual(await logs(`?cursor=${Date.now() + 1000}`), []);
    assert.deepEqual(await logs("?cursor=0&direction=backward"), []);
    const { json: past } = await server.ask<Status>(`${path}/status?logsOffset=1000`);
    assert.deepEqual(past.logEntries, []);
    for (const query of [
      "status?logsOffset=-1",
      "status?limit=x",
      "status?level=fatal",
      "logs?direction=up",
      "logs?cursor=soon",
    ])
      assert.equal((await server.ask(`${path}/${query}`)).status, 400, query);
    const unknown = `GET /templates/${requested.templateID}/builds`;
    for (const [build, message] of [
      ["x", "Invalid build id"],
      [NOWHERE, `Build '${NOWHERE}' not found`],
    ] as const) {
      for (const what of ["status", "logs"]) {
        const { status, json } = await server.ask<Refusal>(`${unknown}/${build}/${what}`);
        assert.deepEqual([status, json.code, json.message], [400, 400, message]);
      }
    }
    server.builder.script = (request, surroundings) => server.builder.make(request, surroundings);
  });

  it("a log that is too long is cut, but the reason of a failure is still written", async () => {
    server.builder.script = (_, { log }) => {
      for (let index = 0; index < 500; index += 1)
        log({ level: "info", message: "y".repeat(100), step: "1" });
      log({ level: "error", message: "Build failed: at last", step: "1" });
      throw new BuildFailure("at last", "1");
    };
    const { logEntries } = await server.ended(await server.build("floods"));
    assert.ok(logEntries.length < 60, String(logEntries.length));
    assert.deepEqual(messages(logEntries).slice(-2), [
      "The log is full: later lines are left out",
      "Build failed: at last",
    ]);
    server.builder.script = (request, surroundings) => server.builder.make(request, surroundings);
  });

  it("a build from a template gets the newest ready build of the reference", async () => {
    let image: unknown;
    server.builder.script = async (request, surroundings) => {
      const made = await server.builder.make(request, surroundings);
      ({ image } = made);
      return made;
    };
    await server.ended(await server.build("bottom:v1"));
    const found: unknown[] = [];
    server.builder.script = (request, surroundings) => {
      const { reference } = request.base as { readonly reference: string };
      found.push(surroundings.findTemplate(reference));
      return server.builder.make(request, surroundings);
    };
    const top = await server.build("top", { start: { fromTemplate: "bottom:v1" } });
    assert.equal((await server.ended(top)).status, "ready");
    assert.deepEqual(
      found.map((one) => (one as { readonly image: string }).image),
      [image],
    );
    for (const [reference, message] of [
      ["bottom:v2", "tag 'v2' does not exist for template 'bottom'"],
      ["nothing", "template 'nothing' not found"],
    ] as const) {
      const missing = await server.ended(await server.build("top", { start: { fromTemplate: reference } }));
      assert.deepEqual([missing.status, missing.reason?.message], ["error", message]);
    }
    server.builder.script = (request, surroundings) => server.builder.make(request, surroundings);
  });
});

describe("many builds", () => {
  it("those that run are limited, by tenant; waiting ones give way to newer ones with their tags", async () => {
    await using server = await templatesServer({ settings: { maxConcurrentBuilds: 2 } });
    const request = (name: string, tenant?: string) =>
      server.ask<Requested & Refusal>("POST /v3/templates", { name }, tenant);
    const first = await request("one:a");
    const second = await request("one:b");
    const third = await request("one:c");
    assert.deepEqual([third.status, third.json.code], [429, 429]);
    assert.match(
      third.json.message,
      /^you have reached the maximum number of concurrent template builds \(2\)/,
    );
    assert.equal((await request("one", "other")).status, 202);
    await server.ask(`POST /v2/templates/${first.json.templateID}/builds/${first.json.buildID}`, START);
    await server.ended(first.json);
    const newer = await request("one:b");
    assert.equal(newer.status, 202);
    const { json: old } = await server.ask<Status>(
      `GET /templates/${second.json.templateID}/builds/${second.json.buildID}/status`,
    );
    assert.deepEqual(
      [old.status, old.reason?.message],
      ["error", "The build was canceled because it was superseded by a newer one."],
    );
  });

  it("requests that are never started are forgotten like other builds, however many there are", async () => {
    await using server = await templatesServer({ settings: { maxBuilds: 3 } });
    for (let requests = 0; requests < 8; requests += 1)
      assert.equal((await server.ask("POST /v3/templates", { name: "one" })).status, 202);
    const { json } =
      await server.ask<readonly { readonly buildCount: number; names: string[] }[]>("GET /templates");
    const counts = json.filter(({ names }) => names.includes("default/one")).map((one) => one.buildCount);
    assert.deepEqual(counts, [3]);
  });

  it("the start of a build cancels a running one of its template that shares a tag", async () => {
    await using server = await templatesServer();
    const aborted = Promise.withResolvers<unknown>();
    server.builder.script = ({ base }, { signal, log }) => {
      if (base.kind !== "image" || base.reference !== "slow") throw new BuildFailure("not slow", undefined);
      const { promise, reject } = Promise.withResolvers<never>();
      signal.addEventListener("abort", () => {
        log({ level: "info", message: "too late for the log", step: undefined });
        aborted.resolve(signal.reason);
        reject(signal.reason as Error);
      });
      return promise;
    };
    const slow = await server.build("one:a", { start: { fromImage: "slow" } });
    const beside = await server.build("one:b", { start: { fromImage: "slow" } });
    const next = await server.build("one:a");
    const { status, reason, logEntries } = await server.ended(slow);
    assert.deepEqual([status, reason?.message], ["error", "build was cancelled"]);
    assert.match(String(await aborted.promise), /build was cancelled/);
    assert.equal((await server.ended(next)).reason?.message, "not slow");
    assert.deepEqual(
      logEntries.map(({ message }) => message),
      ["Build failed: build was cancelled"],
    );
    const { json } = await server.ask<Status>(
      `GET /templates/${beside.templateID}/builds/${beside.buildID}/status`,
    );
    assert.equal(json.status, "building");
    const { status: deleted } = await server.ask(`DELETE /templates/${slow.templateID}`);
    assert.equal(deleted, 204);
    assert.equal((await server.ask(`GET /templates/${slow.templateID}`)).status, 404);
  });

  it("only so many run at the same time on the server; the others have their turn later", async () => {
    await using server = await templatesServer({ settings: { buildConcurrency: 2 } });
    let running = 0;
    let most = 0;
    server.builder.script = async (request, surroundings) => {
      running += 1;
      most = Math.max(most, running);
      await sleep(10);
      running -= 1;
      return server.builder.make(request, surroundings);
    };
    const requested = await Promise.all(["a", "b", "c", "d", "e"].map((name) => server.build(name)));
    for (const one of requested) assert.equal((await server.ended(one)).status, "ready");
    assert.equal(most, 2);
  });

  it("one of several tenants leaves turns to the others, and templates of the configuration count for none", async () => {
    await using server = await templatesServer({
      server: { sandboxes: { templates: { base: {} } } },
      settings: { buildConcurrency: 4, recipes: { base: { from: { debian: { suite: "trixie" } } } } },
    });
    const begun: string[] = [];
    server.builder.script = (request, surroundings) => {
      begun.push(request.tenant);
      if (request.tenant !== "evil") return server.builder.make(request, surroundings);
      return new Promise((_resolve, reject) =>
        surroundings.signal.addEventListener("abort", () => reject(surroundings.signal.reason as Error)),
      );
    };
    const slow = (name: string) => server.build(name, { tenant: "evil" });
    // Alone, with the templates of the server, it may have all turns.
    const alone = [await slow("a"), await slow("b"), await slow("c")];
    while (begun.filter((tenant) => tenant === "evil").length < 3) await sleep(5);
    for (const { templateID, buildID } of alone)
      await server.ask(`POST /templates/${templateID}/builds/${buildID}/cancel`, {}, "evil");
    server.resolve(Tenants).add(() => ["acme", "evil"]);
    for (const name of ["e", "f", "g", "h"]) await slow(name);
    assert.equal((await server.ended(await server.build("own", { tenant: "acme" }), "acme")).status, "ready");
    assert.equal(begun.filter((tenant) => tenant === "evil").length, 3 + 2);
  });

  it("a build that takes too long, or is not started in time, fails", async () => {
    const clock = fakeClock(Date.UTC(2026, 0, 1));
    await using server = await templatesServer({
      clock,
      settings: { buildTimeout: "10m", waitingTimeout: "5m" },
    });
    server.builder.script = (_, { signal }) =>
      new Promise((_resolve, reject) =>
        signal.addEventListener("abort", () => reject(signal.reason as Error)),
      );
    const slow = await server.build("slow");
    const { json: unstarted } = await server.ask<Requested>("POST /v3/templates", { name: "unstarted" });
    await clock.advance(5 * 60_000);
    assert.equal((await server.ended(unstarted)).reason?.message, "The build was not started in time");
    await clock.advance(5 * 60_000);
    assert.equal((await server.ended(slow)).reason?.message, "build timed out after 600s");
  });

  it("tenants have so many templates, and so much space for their images", async () => {
    await using server = await templatesServer({
      memory: {
        images: {
          async onUnpack(_id, _source, files) {
            await files.write("/four", Readable.from([Buffer.from("four")]));
          },
        },
      },
      settings: { maxTemplates: 1, maxStorage: "4B" },
    });
    await server.ended(await server.build("one"));
    await server.ask("GET /templates");
    const more = await server.ask<Refusal>("POST /v3/templates", { name: "two" });
    assert.deepEqual(
      [more.status, more.json.message],
      [429, "you have reached the maximum number of templates (1)"],
    );
    let full = more;
    for (let attempts = 0; attempts < 100 && !full.json.message?.includes("bytes"); attempts += 1) {
      await sleep(10);
      full = await server.ask<Refusal>("POST /v3/templates", { name: "one" });
    }
    assert.deepEqual(
      [full.status, full.json.message],
      [429, "the templates of a tenant may have 4 bytes; delete some of them"],
    );
  });
});
