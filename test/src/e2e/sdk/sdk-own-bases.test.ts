import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { after, before, describe, it } from "node:test";
import { eventually, type TestServer, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { type CommandExitError, Sandbox, Template, type TemplateClass } from "e2b";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

/** In the order in which they are built; the last one is never ready. */
const RECIPES = {
  "base": { from: { image: "acme/root:1" }, steps: "USER root\nRUN echo made > /made-by-recipe" },
  "code": { from: { template: "base" }, steps: "RUN echo code > ~/code" },
  "broken": { from: { template: "base" }, steps: "RUN echo no such luck; exit 3" },
  "above-broken": { from: { template: "broken" } },
  "code-interpreter-v1": { from: { template: "base" }, steps: "RUN sleep 1000" },
};
const SKIP = missingForNamespaces() || WITHOUT_SMALL_ROOT;

describe(
  "the templates of a server's recipes, as bases of the e2b SDK",
  { skip: SKIP, timeout: 240_000 },
  () => {
    let hub: ImageHub;
    let server: TestServer;

    before(async () => {
      // Without the image of E2B's own base.
      hub = await openImageHub(["acme/root:1", "acme/plain:latest"]);
      server = await startFullServer({
        backend: "linux-namespaces",
        server: {
          sandboxes: {
            templates: {
              ...Object.fromEntries(Object.keys(RECIPES).map((name) => [name, {}])),
              code: { aliases: ["ci"] },
            },
          },
        },
        settings: {
          templates: {
            recipes: RECIPES,
            registries: hub.registries,
            builds: {
              standIns: {
                "e2bdev/base": "base",
                "acme/broken": "broken",
                "acme/plain": "nowhere",
              },
            },
          },
        },
      });
      pointSdkAt(server.url);
      await eventually(
        "the recipes before the last one",
        async () => (await statusOf("code-interpreter-v1")) === "building",
        120_000,
      );
    });
    after(async () => {
      await server?.stop();
      await hub?.[Symbol.asyncDispose]();
    });

    async function statusOf(name: string): Promise<string | undefined> {
      const { text } = await exchange(server.url, { path: "/templates", headers: { "x-api-key": API_KEY } });
      const listed = JSON.parse(text) as readonly {
        readonly templateID: string;
        readonly buildStatus: string;
      }[];
      return listed.find(({ templateID }) => templateID === name)?.buildStatus;
    }

    /** Builds a template, and returns the output of a command in a sandbox of it. */
    async function outputOf(template: TemplateClass, command: string): Promise<string> {
      await Template.build(template, "on-top");
      const sandbox = await Sandbox.create("on-top", { timeoutMs: 60_000 });
      try {
        return (await sandbox.commands.run(command)).stdout;
      } finally {
        await sandbox.kill();
      }
    }

    it("a tenant builds on them: by fromBaseImage, which is what the SDK begins with, by name and by alias", async () => {
      const onBase = Template().fromBaseImage().runCmd("cp /made-by-recipe ~/seen");
      assert.equal(await outputOf(onBase, "id -un; cat seen"), "user\nmade\n");
      for (const name of ["base", "code", "ci"]) {
        const template = Template().fromTemplate(name).runCmd(`echo ${name} > ~/name`);
        assert.equal(await outputOf(template, "cat /made-by-recipe name"), `made\n${name}\n`);
      }
      assert.equal(await outputOf(Template().fromTemplate("ci").runCmd("true"), "cat code"), "code\n");
      await assert.rejects(
        Template.build(Template().fromTemplate("base:v2").runCmd("true"), "never"),
        /tag 'v2' does not exist for template 'base'/,
      );
    });

    const refusals: readonly (readonly [template: () => TemplateClass, message: RegExp])[] = [
      [
        () => Template().fromTemplate("code-interpreter-v1").runCmd("true"),
        /template 'code-interpreter-v1' is still being built by this server/,
      ],
      [
        () => Template().fromTemplate("broken").runCmd("true"),
        /template 'broken' could not be built by this server.*: failed to run command 'echo no such luck; exit 3'/s,
      ],
      [
        () => Template().fromTemplate("above-broken").runCmd("true"),
        /template 'above-broken' could not be built .*: it starts from template 'broken', which could not be built/,
      ],
      [
        () => Template().fromImage("acme/broken").runCmd("true"),
        /template 'broken' could not be built by this server/,
      ],
    ];
    it("a build on one that is not ready fails with the reason, and never becomes another image", async () => {
      for (const [template, message] of refusals)
        await assert.rejects(Template.build(template(), "never"), (error: Error) => {
          assert.match(error.message, message);
          return true;
        });
    });

    it("where no template stands for an image, the log says so before its registry is asked", async () => {
      const lines: string[] = [];
      await Template.build(Template().fromImage("acme/plain").runCmd("true"), "of-plain", {
        onBuildLogs: ({ message }) => lines.push(message),
      });
      assert.ok(
        lines.some((line) =>
          line.startsWith("No template of this server stands for acme/plain, so its registry is asked"),
        ),
        lines.join("\n"),
      );
    });

    it("a sandbox that is made before its template is ready tells its client, who finds no packages there", async () => {
      const create = async (templateID: string) => {
        const answer = await exchange(server.url, {
          method: "POST",
          path: "/sandboxes",
          headers: { "x-api-key": API_KEY },
          body: JSON.stringify({ templateID, timeout: 60 }),
        });
        assert.equal(answer.status, 201, answer.text);
        const { sandboxID } = JSON.parse(answer.text) as { readonly sandboxID: string };
        return { notice: answer.headers["coppice-notice"], sandbox: await Sandbox.connect(sandboxID) };
      };
      const early = await create("code-interpreter-v1");
      assert.equal(
        early.notice,
        "template 'code-interpreter-v1' is not built yet: this sandbox has what the server has by that name",
      );
      if (existsSync("/usr/bin/apt-get")) {
        const run = (command: string) => early.sandbox.commands.run(command, { user: "root" });
        await assert.rejects(run("apt-get install -y cowsay"), (error: CommandExitError) => {
          assert.equal(error.exitCode, 100);
          assert.match(
            error.stderr,
            /^apt-get: no packages can be installed in this sandbox: it is made of the server's own/,
          );
          return true;
        });
        assert.match((await run("apt-get --version")).stdout, /^apt /);
      }
      await early.sandbox.kill();
      const ready = await create("base");
      assert.equal(ready.notice, undefined);
      await ready.sandbox.kill();
    });
  },
);
