import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { type TestServer, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { Sandbox } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const CLI = fileURLToPath(new URL("../../../../node_modules/@e2b/cli/dist/index.js", import.meta.url));

const DOCKERFILE = `FROM ubuntu:22.04
WORKDIR /srv
COPY file.txt copied.txt
ENV SEEN=later
RUN echo "$SEEN" > made.txt
`;

describe("e2b template", { skip: missingForNamespaces() || WITHOUT_SMALL_ROOT, timeout: 240_000 }, () => {
  let directory: string;
  let hub: ImageHub;
  let server: TestServer;

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-cli-"));
    hub = await openImageHub(["library/ubuntu:22.04"]);
    await mkdir(join(directory, "project"));
    await writeFile(join(directory, "project/Dockerfile"), DOCKERFILE);
    await writeFile(join(directory, "project/file.txt"), "copied");
    const { registries } = hub;
    server = await startFullServer({ backend: "linux-namespaces", settings: { templates: { registries } } });
    pointSdkAt(server.url);
  });
  after(async () => {
    await server.stop();
    await hub[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });

  /** Runs the program; resolves with its exit code and all that it has printed. */
  const e2b = (...words: readonly string[]): Promise<{ readonly code: number; readonly printed: string }> =>
    new Promise((resolve) => {
      const env = {
        PATH: process.env["PATH"],
        HOME: directory,
        // It looks for newer versions of itself otherwise.
        CI: "1",
        NODE_ENV: "test",
        NO_COLOR: "1",
        E2B_API_URL: server.url,
        E2B_SANDBOX_URL: server.url,
        E2B_API_KEY: API_KEY,
      };
      const options = { cwd: join(directory, "project"), env, timeout: 120_000 };
      execFile(process.execPath, [CLI, "template", ...words], options, (error, stdout, stderr) => {
        const code = typeof error?.code === "number" ? error.code : error === null ? 0 : 1;
        resolve({ code, printed: `${stdout}${stderr}` });
      });
    });
  const listed = async (): Promise<string | undefined> => {
    const { code, printed } = await e2b("list");
    assert.equal(code, 0, printed);
    return printed.split("\n").find((line) => line.includes("of-the-cli"));
  };

  it("create, list, publish, unpublish and delete do what they say", async () => {
    const start = ["--cmd", "touch ~/up; sleep 600", "--ready-cmd", "test -f ~/up"];
    const created = await e2b("create", "of-the-cli", "--cpu-count", "1", "--memory-mb", "512", ...start);
    assert.equal(created.code, 0, created.printed);
    assert.match(created.printed, /\[builder \d\/\d\] RUN echo "\$SEEN" > made\.txt/);
    assert.match(created.printed, /Building sandbox template of-the-cli finished/);
    assert.match((await listed()) ?? "", /^Private +[a-z0-9]{20} +of-the-cli +1 +512 /);
    const sandbox = await Sandbox.create("of-the-cli");
    try {
      const { stdout } = await sandbox.commands.run("pwd; cat copied.txt made.txt; ls ~");
      assert.equal(stdout, "/srv\ncopiedlater\nup\n");
    } finally {
      await sandbox.kill();
    }
    const published = await e2b("publish", "--yes", "of-the-cli");
    assert.match(published.printed, /Published as: default\/of-the-cli/);
    assert.match((await listed()) ?? "", /^Public /);
    assert.equal((await e2b("unpublish", "--yes", "of-the-cli")).code, 0);
    assert.match((await listed()) ?? "", /^Private /);
    assert.equal((await e2b("delete", "--yes", "of-the-cli")).code, 0);
    assert.equal(await listed(), undefined);
  });

  it("delete says that the configuration has a template", async () => {
    const { code, printed } = await e2b("delete", "--yes", "base");
    assert.equal(code, 1);
    assert.match(printed, /template 'base' is one of this server's configuration/);
  });
});
