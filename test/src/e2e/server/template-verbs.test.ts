import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

describe("coppice template", { skip: missingForNamespaces() || WITHOUT_SMALL_ROOT, timeout: 240_000 }, () => {
  let installation: Installation;
  let hub: ImageHub;
  let server: ServerProcess;
  let config: string;

  before(async () => {
    hub = await openImageHub(["library/small:latest"]);
    installation = await makeInstallation({
      config: { sandboxes: { defaultBackend: "linux-namespaces" } },
      plugins: (directory) => ({
        "jupyter": undefined,
        "local-process": undefined,
        "linux-namespaces": { directory: join(directory, "namespaces") },
        "templates": { registries: hub.registries },
      }),
    });
    config = installation.configFile;
    server = await ServerProcess.start(config);
  });
  after(async () => {
    await server.stop();
    await hub[Symbol.asyncDispose]();
    await installation.remove();
  });

  const ask = (method: string, path: string, body?: unknown) =>
    exchange(server.url, {
      method,
      path,
      headers: { "x-api-key": API_KEY },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
  const template = async (action: string, ...args: readonly string[]) => {
    const { code, stdout, stderr } = await startCoppice(["template", action, config, ...args]).end;
    return { code, stdout: stdout.toString(), stderr };
  };

  /** Of the file that the build made, in a sandbox. */
  const contents = async (sandboxId: string) => {
    const connection = { E2B_API_URL: server.url, E2B_API_KEY: API_KEY };
    const { stdout } = await startCoppice(["exec", sandboxId, "--", "cat", "made"], connection).end;
    return stdout.toString();
  };

  it("lists, follows, checks, removes and collects what a server has built", async () => {
    const requested = await ask("POST", "/v3/templates", { name: "web" });
    const { templateID, buildID } = requested.json() as {
      readonly templateID: string;
      readonly buildID: string;
    };
    const steps = [{ type: "RUN", args: ["echo built > made"] }];
    await ask("POST", `/v2/templates/${templateID}/builds/${buildID}`, { fromImage: "small", steps });
    const followed = await template("logs", "web", "--follow");
    assert.equal(followed.code, 0, followed.stderr);
    assert.match(
      followed.stdout,
      /^Building template .*\n[^]*\[builder 1\/1\] RUN echo built[^]*\nBuild finished, took \d+s\n$/,
    );
    assert.match(
      (await template("list")).stdout,
      new RegExp(`^default/web\t${templateID}\tdefault\tprivate\t1\tready\t`),
    );
    const inspected = JSON.parse((await template("inspect", "web")).stdout) as {
      readonly builds: readonly object[];
    };
    assert.equal(inspected.builds.length, 1);

    const made = await ask("POST", "/sandboxes", { templateID: "web", timeout: 600 });
    const { sandboxID } = made.json() as { readonly sandboxID: string };
    assert.equal((await template("remove", "web")).stdout, "template default/web is removed\n");
    assert.equal((await ask("GET", `/templates/${templateID}`)).status, 404);
    assert.equal(await contents(sandboxID), "built\n");

    for (const action of ["fsck", "gc"]) {
      const refused = await template(action);
      assert.equal(refused.code, 78, refused.stdout);
      assert.match(refused.stderr, /another server runs on this data directory/);
    }
    server.signal("SIGKILL");
    await server.ended;
    const whole = await template("fsck");
    assert.deepEqual([whole.code, whole.stdout], [0, "0 lost, 0 not needed, 0 unknown\n"], whole.stderr);

    // Cached steps have the images still.
    assert.deepEqual((await template("gc")).stdout, "");
    const settings = JSON.parse(await readFile(config, "utf8")) as {
      readonly plugins: { readonly templates: object };
    };
    Object.assign(settings.plugins.templates, { layersKept: "0s" });
    await writeFile(config, JSON.stringify(settings));
    const collected = await template("gc");
    assert.match(collected.stdout, /^(removed \w+ of linux-namespaces\n)+$/);
    assert.equal((await template("fsck")).stdout, "0 lost, 0 not needed, 0 unknown\n");
    server = await ServerProcess.start(config);
    assert.equal(await contents(sandboxID), "built\n");
  });

  it("says what is wrong with what it is asked", async () => {
    for (const [told, ...args] of [
      [/unknown command 'lits'\n\(Did you mean list\?\)\n$/, "lits"],
      [/missing required argument 'name'/, "inspect"],
      [/unknown option '--all'/, "gc", "--all"],
    ] as const) {
      const [action, ...more] = args;
      const { code, stderr } = await template(action, ...more);
      assert.equal(code, 64, stderr);
      assert.match(stderr, told);
    }
    const missing = await template("logs", "nothing");
    assert.deepEqual([missing.code, missing.stderr], [1, "coppice: template 'nothing' not found\n"]);
  });
});
