import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { type TestServer, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { BuildError, Sandbox, Template } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

/** The interpreter with the newest SDK that the set-up of `npm test` makes if PyPI is reachable. */
const PYTHON = process.env["COPPICE_PYTHON_SDK_NEWEST"];
const PYTHON_CLIENT = fileURLToPath(new URL("../../../src/e2e/sdk/python-templates.py", import.meta.url));

const skip = missingForNamespaces() || WITHOUT_SMALL_ROOT;

describe("names, tags and logs of templates that the e2b SDK builds", { skip, timeout: 240_000 }, () => {
  let directory: string;
  let hub: ImageHub;
  let server: TestServer;

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-template-names-"));
    hub = await openImageHub(["library/ubuntu:22.04"]);
    await mkdir(join(directory, "context"));
    await writeFile(join(directory, "context/file.txt"), "copied");
    const { registries } = hub;
    server = await startFullServer({ backend: "linux-namespaces", settings: { templates: { registries } } });
    pointSdkAt(server.url);
  });
  after(async () => {
    await server.stop();
    await hub[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });

  const template = (line: string) =>
    Template({ fileContextPath: join(directory, "context") })
      .fromImage("ubuntu:22.04")
      .copy("file.txt", "file.txt")
      .runCmd(line);

  it("builds have tags; sandboxes are made by tag and by build", async () => {
    const first = await Template.build(template("echo one > version"), "tagged:v1", { tags: ["stable"] });
    assert.deepEqual(first.tags, ["v1", "stable"]);
    const second = await Template.build(template("echo two > version"), "tagged");
    assert.equal(second.templateId, first.templateId);
    const versionOf = async (name: string): Promise<string> => {
      const sandbox = await Sandbox.create(name);
      try {
        return (await sandbox.files.read("version")).trim();
      } finally {
        await sandbox.kill();
      }
    };
    const names = [
      "tagged:v1",
      "tagged:stable",
      "tagged",
      `default/tagged:${first.buildId}`,
      first.templateId,
    ];
    const versions = await Promise.all(names.map(versionOf));
    assert.deepEqual(versions, ["one", "one", "two", "one", "two"]);
    const assigned = await Template.assignTags("tagged", ["latest", "v2"]);
    assert.deepEqual([assigned.buildId, assigned.tags], [second.buildId, ["latest", "v2"]]);
    await Template.assignTags("tagged:v1", "stable");
    await Template.removeTags("tagged", ["latest"]);
    const tags = await Template.getTags("tagged");
    assert.deepEqual(
      tags.map(({ tag, buildId }) => [tag, buildId === first.buildId ? 1 : 2]),
      [
        ["default", 2],
        ["stable", 1],
        ["v1", 1],
        ["v2", 2],
      ],
    );
    await assert.rejects(Template.assignTags("tagged", ["invalid tag!"]), /400: Invalid tag: invalid tag!/);
    await assert.rejects(Template.removeTags("tagged", ["default"]), /Cannot delete the 'default' tag/);
    assert.equal(await Template.exists("tagged"), true);
    assert.equal(await Template.exists("tagged:v9"), false);
    await assert.rejects(Sandbox.create("tagged:v9"), /tag 'v9' does not exist for template 'tagged'/);
  });

  it("a build runs in the background, and its state is asked for; a cached one is ready at once", async () => {
    const built = await Template.buildInBackground(template("echo here; sleep 1"), "background");
    let status = await Template.getBuildStatus(built);
    assert.ok(["waiting", "building"].includes(status.status));
    for (let attempts = 0; status.status === "building" && attempts < 600; attempts += 1) {
      await sleep(100);
      status = await Template.getBuildStatus(built);
    }
    assert.equal(status.status, "ready");
    const lines: string[] = [];
    const onBuildLogs = ({ message }: { readonly message: string }) => lines.push(message);
    await Template.build(template("echo here; sleep 1"), "background", { onBuildLogs });
    const told = lines.join("\n");
    assert.match(told, /Skipping upload of 'file.txt', already cached/);
    assert.match(told, /^CACHED \[builder 2\/2\] RUN echo here; sleep 1/m);
    assert.ok(!told.includes("[stdout]"), told);
  });

  it("a build fails at a step, and says why", async () => {
    const failing = template("true").runCmd("echo problem >&2; exit 7");
    const lines: string[] = [];
    await assert.rejects(
      Template.build(failing, "failing", { onBuildLogs: ({ message }) => lines.push(message) }),
      (error) => {
        assert.ok(error instanceof BuildError);
        assert.match(error.message, /failed to run command 'echo problem >&2; exit 7': exit status 7/);
        // The line of this file that made the step.
        assert.match(error.stack ?? "", /sdk-template-names\.test/);
        return true;
      },
    );
    assert.match(lines.join("\n"), /\[builder 3\/3\] \[stderr\]: problem/);
    assert.match(lines.join("\n"), /Build failed: failed to run command/);
    await assert.rejects(Sandbox.create("failing"), /tag 'default' does not exist for template 'failing'/);
  });

  it(
    "both clients of the newest Python SDK build, tag and use templates",
    {
      skip: PYTHON === undefined && "PyPI was not reachable when the tests were set up",
    },
    async () => {
      const env = {
        ...process.env,
        E2B_API_URL: server.url,
        E2B_SANDBOX_URL: server.url,
        E2B_API_KEY: API_KEY,
      };
      const { stdout } = await promisify(execFile)(
        PYTHON ?? "",
        [PYTHON_CLIENT, join(directory, "context")],
        { env },
      );
      const found = (name: string) => ({
        tags: ["v1"],
        copied: true,
        exists: [true, false],
        assigned: ["v2", "v3"],
        left: ["v1", "v2"],
        started: "seen\n",
        listed: ['echo "$LATER" > started; sleep 600'],
        name,
        failure: "failed to run command 'exit 3': exit status 3",
      });
      assert.deepEqual(JSON.parse(stdout), { sync: found("python-sync"), async: found("python-async") });
    },
  );

  it("a newer build with the same tag cancels one that runs", async () => {
    const started = Promise.withResolvers<void>();
    const failure = Template.build(template("sleep 60"), "raced", {
      onBuildLogs: ({ message }) => {
        if (message.includes("RUN sleep 60")) started.resolve();
      },
    }).then(
      () => undefined,
      (error: unknown) => error,
    );
    await started.promise;
    await Template.build(template("true"), "raced");
    assert.match(String(await failure), /build was cancelled/);
  });
});
