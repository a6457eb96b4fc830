import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import {
  type DockerRegistry,
  openDockerRegistry,
  type TestServer,
  WITHOUT_SMALL_ROOT,
} from "@coppice/core/testing";
import { Sandbox, Template, type TemplateClass, waitForFile } from "e2b";
import { reasonWithoutFreebsdHost } from "../../harness/freebsd/freebsd-host.js";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const LONG = { timeoutMs: 60_000 };

const BACKENDS = {
  "linux-namespaces": missingForNamespaces(),
  "jail-freebsd": reasonWithoutFreebsdHost() ?? false,
} as const;

for (const [backend, missing] of Object.entries(BACKENDS)) {
  const options = { skip: missing || WITHOUT_SMALL_ROOT, timeout: 480_000, concurrency: 1 };
  describe(`templates built by the e2b SDK, on ${backend}`, options, () => {
    let directory: string;
    let hub: ImageHub;
    let registry: DockerRegistry;
    let server: TestServer;

    before(async () => {
      directory = await mkdtemp(join(tmpdir(), "coppice-template-builds-"));
      hub = await openImageHub(["e2bdev/base:latest", "library/ubuntu:22.04"], { Env: ["OF_IMAGE=yes"] });
      registry = await openDockerRegistry();
      const registries = hub.registries as { readonly insecure: readonly string[] };
      const { address } = registry;
      server = await startFullServer({
        backend: backend as keyof typeof BACKENDS,
        settings: {
          templates: {
            registries: { ...registries, private: [address], insecure: [...registries.insecure, address] },
          },
        },
      });
      pointSdkAt(server.url);
      const folder = join(directory, "context/folder");
      await mkdir(folder, { recursive: true });
      await writeFile(join(folder, "test.txt"), "This is a test file.");
      await symlink("test.txt", join(folder, "symlink.txt"));
      await mkdir(join(directory, "context/links"));
      await symlink("../folder/test.txt", join(directory, "context/links/good.txt"));
    });
    after(async () => {
      await server?.stop();
      await registry[Symbol.asyncDispose]();
      await hub[Symbol.asyncDispose]();
      await rm(directory, { recursive: true });
    });

    async function using<T>(name: string, use: (sandbox: Sandbox) => Promise<T>): Promise<T> {
      const sandbox = await Sandbox.create(name, LONG);
      try {
        return await use(sandbox);
      } finally {
        await sandbox.kill();
      }
    }

    it("a template of an image with files, commands, variables and a start command becomes a sandbox", async () => {
      const template = Template({ fileContextPath: join(directory, "context") })
        .fromImage("ubuntu:22.04")
        .skipCache()
        .copy("folder/*", "folder", { forceUpload: true })
        .setEnvs({ ENV_1: "value1", ENV_2: "value 2" })
        .runCmd("cat folder/test.txt && cat folder/symlink.txt")
        .runCmd('echo "$ENV_1 $ENV_2" > ~/variables')
        .makeDir("made/dir", { mode: 0o700 })
        .rename("variables", "renamed")
        .setWorkdir("/app")
        // The image has no ss, which waitForPort looks with.
        .setStartCmd("httpd -p 8000 -h ~/folder && touch ~/up && sleep 1000", waitForFile("/home/user/up"));
      const lines: string[] = [];
      const built = await Template.build(template, "first-template", {
        cpuCount: 1,
        memoryMB: 512,
        onBuildLogs: ({ message }) => lines.push(message),
      });
      assert.ok(built.templateId && built.buildId);
      const told = lines.join("\n");
      for (const line of [
        "[base] FROM ubuntu:22.04",
        "[base] DEFAULT USER user",
        "This is a test file.This is a test file.",
        "[finalize] Finalizing template build",
        "Template is ready",
        "Build finished",
      ]) {
        assert.ok(told.includes(line), `'${line}' is in\n${told}`);
      }
      await using("first-template", async (sandbox) => {
        const { stdout } = await sandbox.commands.run(
          "pwd; id -un; cat ~/renamed; stat -c '%a %U' ~/made/dir; ls ~/folder; echo \"[$ENV_1]\"; wget -qO- http://127.0.0.1:8000/test.txt",
        );
        assert.equal(
          stdout,
          "/app\nuser\nvalue1 value 2\n700 user\nsymlink.txt\ntest.txt\n[]\nThis is a test file.",
        );
      });
    });

    /** Builds a template, and returns the output of a command in a sandbox of it. */
    async function outputOf(template: TemplateClass, command: string, name = "checked"): Promise<string> {
      await Template.build(template, name);
      return using(name, async (sandbox) => (await sandbox.commands.run(command)).stdout);
    }

    const context = () => Template({ fileContextPath: join(directory, "context") });

    it("a template goes on from the base of E2B, or from another template", async () => {
      const base = Template()
        .fromBaseImage()
        .setUser("worker")
        .setWorkdir("/work")
        .runCmd("echo mine > file");
      assert.equal(await outputOf(base, "id -un; pwd; cat file", "of-base"), "worker\n/work\nmine\n");
      const derived = Template().fromTemplate("of-base").runCmd("id -un > ~/who");
      assert.equal(await outputOf(derived, "id -un; pwd; cat file ~/who"), "user\n/work\nmine\nuser\n");
      await assert.rejects(
        Template.build(Template().fromTemplate("no-such-template"), "never"),
        /template 'no-such-template' not found/,
      );
    });

    it("links are copied as links, or as what they lead to", async () => {
      const links = context()
        .fromImage("ubuntu:22.04")
        .copy("links", "links")
        .copy("folder/symlink.txt", "alone.txt");
      assert.equal(
        await outputOf(links, "readlink links/good.txt; readlink alone.txt"),
        "../folder/test.txt\ntest.txt\n",
      );
      const resolved = context()
        .fromImage("ubuntu:22.04")
        .copy("folder/*", "/srv/folder", { resolveSymlinks: true, user: "root", mode: 0o640 });
      assert.equal(await outputOf(resolved, "stat -c '%U %a' /srv/folder/*"), "root 640\nroot 640\n");
    });

    it("commands run one or many, and as another user", async () => {
      const many = context()
        .fromImage("ubuntu:22.04")
        .runCmd(["echo 1 > one", "echo 2 > two"])
        .runCmd("id -un > /root/who; chmod -R a+rX /root", { user: "root" });
      assert.equal(await outputOf(many, "cat one two /root/who"), "1\n2\nroot\n");
      await assert.rejects(
        Template.build(context().fromImage("ubuntu:22.04").runCmd("whoami", { user: "root123" }), "never"),
        /failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'/,
      );
    });

    it("links are made, in place of others when they are forced", async () => {
      const links = context()
        .fromImage("ubuntu:22.04")
        .makeSymlink(".bashrc", ".bashrc.local")
        .runCmd("touch old")
        .makeSymlink("new", "old", { force: true });
      assert.equal(await outputOf(links, "readlink .bashrc.local; readlink old"), ".bashrc\nnew\n");
    });

    it("a template that was pushed to a registry is the same when it is built from there", async () => {
      const made = Template()
        .fromImage("ubuntu:22.04")
        .runCmd("echo kept > ~/kept && ln -s kept ~/link && chmod 4711 ~/kept");
      const seen = "cat ~/link; stat -c '%a %U' ~/kept";
      assert.equal(await outputOf(made, seen, "to-push"), "kept\n4711 user\n");
      const image = `${registry.address}/team/pushed:v1`;
      const pushed = await exchange(server.url, {
        method: "POST",
        path: "/templates/push",
        headers: { "x-api-key": API_KEY },
        body: JSON.stringify({ template: "to-push", image }),
      });
      assert.match(pushed.text, /"digest":"sha256:[0-9a-f]{64}"/);
      assert.equal(await outputOf(Template().fromImage(image), seen, "pushed"), "kept\n4711 user\n");
    });

    it("a Dockerfile is built, with its command as the start command", async () => {
      const dockerfile = `
FROM ubuntu:22.04
ARG GREETING=hello
ENV NAME=world
WORKDIR /srv
COPY folder/test.txt ./copied.txt
RUN echo "$GREETING $NAME" > said
CMD echo started > /tmp/started; exec sleep 1000
`;
      const template = context().fromDockerfile(dockerfile).setReadyCmd(waitForFile("/tmp/started"));
      assert.equal(
        await outputOf(template, "pwd; cat said copied.txt; stat -c %U said; cat /tmp/started"),
        "/srv\nhello world\nThis is a test file.root\nstarted\n",
      );
    });
  });
}
