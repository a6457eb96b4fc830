import assert from "node:assert/strict";
import { Readable } from "node:stream";
import { buffer } from "node:stream/consumers";
import { after, before, describe, it } from "node:test";
import { SandboxError, Sandboxes, Snapshots } from "@coppice/core";
import { entriesOfTar } from "@coppice/core/testing";
import type { ImagePusher, PushedFiles, PushOptions } from "../images/image-pusher.js";
import { LABEL, readPushedTemplate } from "../model/pushed-template.js";
import { START, templatesServer, type TemplatesServer } from "../testing/templates-server.js";
import { REASONS } from "../reasons.js";

interface Settings {
  readonly User: string;
  readonly Env: readonly string[];
  readonly Cmd?: readonly string[];
  readonly Labels: Readonly<Record<string, string>>;
}

const STARTED = {
  command: "serve",
  ready: "check",
  user: "user",
  workdir: "/srv",
  environment: { BUILT: "yes" },
  ports: [80],
};

describe("the route of pushes", () => {
  let server: TemplatesServer;
  let push: (files: PushedFiles, options: PushOptions) => Promise<string>;
  const targets: string[] = [];

  before(async () => {
    const pusher: Pick<ImagePusher, "target"> = {
      target({ reference }) {
        if (!reference.includes("/")) throw new SandboxError(REASONS.image_target_invalid, "no registry");
        targets.push(reference);
        return { push: (files, options) => push(files, options) };
      },
    };
    server = await templatesServer({
      settings: { maxConcurrentPushes: 2 },
      pusher,
      script: async ({ startCommand }, _surroundings, make) => ({
        ...(await make()),
        start: startCommand === undefined ? undefined : { ...STARTED, command: startCommand },
      }),
    });
    const start = { ...START, startCmd: STARTED.command };
    await server.ended(await server.build("own:v1", { tenant: "acme", start }), "acme");
    await server.ended(await server.build("open", { tenant: "acme" }), "acme");
    const long = { ...START, startCmd: "x".repeat(300_000) };
    await server.ended(await server.build("large", { tenant: "acme", start: long }), "acme");
    await server.ask("PATCH /v2/templates/open", { public: true }, "acme");
  });
  after(() => server.stop());

  const ask = async (body: unknown, tenant = "acme") => {
    const { status, text } = await server.ask("POST /templates/push", body, tenant);
    const lines = text.trim().split("\n");
    return { status, lines: lines.map((line) => JSON.parse(line) as Record<string, unknown>) };
  };

  it("streams how far a push is, and then the digest of an image with the template's configuration", async () => {
    let pushed: { readonly files: ReadonlyMap<string, string>; readonly settings: Settings } | undefined;
    push = async ({ archive, settings }, { report, signal, tenant }) => {
      assert.equal(tenant, "acme");
      const files = entriesOfTar(await buffer(archive(signal)));
      pushed = { files, settings: settings as Settings };
      for (let done = 0; done <= 1_000; done += 1) report({ phase: "pushing", done, total: 1_000 });
      return "sha256:digest";
    };
    const { status, lines } = await ask({ template: "own:v1", image: "registry/own" });
    assert.deepEqual([status, lines.at(-1)], [200, { digest: "sha256:digest" }]);
    assert.deepEqual(lines.at(-2), { progress: { phase: "pushing", done: 1_000, total: 1_000 } });
    assert.ok(lines.length < 50, "each report is a line");
    assert.equal(pushed?.files.get("four"), "four");
    const { User, Env, Cmd, Labels } = pushed.settings;
    assert.deepEqual([User, Env, Cmd], ["user", ["BUILT=yes"], ["/bin/bash", "-l", "-c", "serve"]]);
    assert.deepEqual(readPushedTemplate(Labels[LABEL] ?? "", 100), {
      user: "user",
      environment: { BUILT: "yes" },
      start: STARTED,
      limits: { cpuCount: 2, memoryMiB: 1024 },
    });
  });

  it("pushes a snapshot with what its sandbox has changed", async () => {
    const { status, json } = await server.ask<{ sandboxID: string }>(
      "POST /sandboxes",
      { templateID: "open" },
      "acme",
    );
    assert.equal(status, 201);
    const { runtime } = server.resolve(Sandboxes).get(json.sandboxID);
    await runtime.files.write("/own", Readable.from([Buffer.from("own")]));
    const { id } = await server.resolve(Snapshots).of("acme").take(json.sandboxID, "saved");
    let names: readonly string[] = [];
    push = async ({ archive, settings }, { signal }) => {
      names = [...entriesOfTar(await buffer(archive(signal))).keys()];
      assert.equal(readPushedTemplate((settings as Settings).Labels[LABEL] ?? "", 100)?.user, "user");
      return "sha256:digest";
    };
    for (const snapshot of [id, "saved"]) {
      const { lines } = await ask({ snapshot, image: "registry/saved" });
      assert.deepEqual(lines, [{ digest: "sha256:digest" }]);
      assert.ok(names.includes("four") && names.includes("own"));
    }
    assert.equal((await ask({ snapshot: id, image: "registry/saved" }, "other")).status, 404);
  });

  it("ends with the reason of a failure", async () => {
    push = () => Promise.reject(new SandboxError(REASONS.image_not_pushed, "access denied"));
    const { status, lines } = await ask({ template: "own:v1", image: "registry/own" });
    assert.deepEqual([status, lines], [200, [{ error: { message: "access denied" } }]]);
  });

  it("ends a push whose client has gone", async () => {
    const leaving = new AbortController();
    const ended = Promise.withResolvers<unknown>();
    push = (_files, { signal }) => {
      leaving.abort();
      return new Promise((_resolve, reject) => {
        signal.addEventListener("abort", () => {
          ended.resolve(signal.reason);
          reject(signal.reason as Error);
        });
      });
    };
    const request = fetch(`${server.url}/templates/push`, {
      method: "POST",
      headers: { "x-tenant": "acme" },
      body: JSON.stringify({ template: "own:v1", image: "registry/own" }),
      signal: leaving.signal,
    });
    await assert.rejects(request.then((answer) => answer.text()));
    assert.ok(await ended.promise);
  });

  it("lets a tenant have so many at one time, and others have theirs", async () => {
    const gates = [Promise.withResolvers<string>(), Promise.withResolvers<string>()];
    const begun: string[] = [];
    push = async (_files, { tenant }) => {
      begun.push(tenant);
      return gates[begun.length - 1]?.promise ?? "sha256:late";
    };
    const body = { template: "own:v1", image: "registry/own" };
    const first = [ask(body), ask(body)];
    while (begun.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
    const { status, lines } = await ask(body);
    assert.equal(status, 429);
    assert.match(
      String(lines[0]?.["message"]),
      /^you have reached the maximum number of concurrent pushes \(2\)/,
    );
    await server.ended(await server.build("own:v1", { tenant: "other" }), "other");
    assert.equal((await ask(body, "other")).status, 200);
    for (const { resolve } of gates) resolve("sha256:first");
    await Promise.all(first);
    assert.equal((await ask(body)).status, 200);
  });

  for (const [what, body, tenant, status] of [
    ["neither a template nor a snapshot", { image: "a/b" }, "acme", 400],
    ["both", { image: "a/b", template: "own:v1", snapshot: "x" }, "acme", 400],
    ["no image", { template: "own:v1" }, "acme", 400],
    ["a place that is none", { template: "own:v1", image: "nowhere" }, "acme", 400],
    ["an unknown template", { template: "missing", image: "a/b" }, "acme", 404],
    ["an unknown tag", { template: "own:v2", image: "a/b" }, "acme", 404],
    [
      "a template of the configuration that is not built here",
      { template: "base", image: "a/b" },
      "acme",
      404,
    ],
    ["commands that no image takes", { template: "large", image: "a/b" }, "acme", 400],
    ["an unknown snapshot", { snapshot: "missing", image: "a/b" }, "acme", 404],
    ["a private template of another tenant", { template: "acme/own:v1", image: "a/b" }, "other", 404],
    ["a published template of another tenant", { template: "acme/open", image: "a/b" }, "other", 403],
  ] as const) {
    it(`answers ${status} for ${what}`, async () => {
      assert.equal((await ask(body, tenant)).status, status);
    });
  }
});
