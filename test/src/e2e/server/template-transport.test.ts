import assert from "node:assert/strict";
import { once } from "node:events";
import { chmod, mkdir, readdir, symlink, writeFile } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import {
  type DockerRegistry,
  eventually,
  openDockerRegistry,
  WITHOUT_SMALL_ROOT,
} from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice, startCoppiceInTerminal } from "../../harness/server/coppice-command.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const DOCKERFILE = `FROM small
WORKDIR /srv
ENV GREETING=hello
COPY --chown=user *.txt sub ./
RUN cat a.txt b.txt > both && ln both hard && chmod 4755 both
CMD ["sh", "-c", "echo \\"$GREETING\\" > /tmp/started; sleep 600"]
`;

interface Machine {
  readonly installation: Installation;
  server: ServerProcess;
}

const KEY = { E2B_API_KEY: API_KEY };

describe(
  "coppice template on several machines",
  { skip: missingForNamespaces() || WITHOUT_SMALL_ROOT, timeout: 600_000 },
  () => {
    let hub: ImageHub;
    let registry: DockerRegistry;
    let stuck: Server;
    let stuckAddress: string;
    let [one, other]: readonly [Machine?, Machine?] = [];
    let folder: string;

    before(async () => {
      hub = await openImageHub(["library/small:latest"]);
      registry = await openDockerRegistry();
      // A registry that takes no blob.
      stuck = createServer((request, response) => {
        request.resume();
        if (request.method === "HEAD") response.writeHead(404).end();
        else if (request.method === "DELETE") response.writeHead(204).end();
        else if (request.method === "POST")
          response.writeHead(202, { location: "/v2/a/blobs/uploads/1" }).end();
      }).listen(0, "127.0.0.1");
      await once(stuck, "listening");
      stuckAddress = `127.0.0.1:${(stuck.address() as AddressInfo).port}`;
      [one, other] = [await makeMachine(), await makeMachine()];
      folder = join(one.installation.directory, "folder");
      await mkdir(join(folder, "sub/deep"), { recursive: true });
      await writeFile(join(folder, "Dockerfile"), DOCKERFILE);
      await writeFile(join(folder, ".dockerignore"), "secret.txt\n**/*.log\n");
      for (const name of ["a.txt", "b.txt", "secret.txt", "sub/c", "sub/deep/d", "sub/deep/e.log"])
        await writeFile(join(folder, name), `${name}\n`);
      await chmod(join(folder, "sub/c"), 0o751);
      await symlink("deep/d", join(folder, "sub/link"));
    });
    after(async () => {
      for (const machine of [one, other]) {
        await machine?.server.stop();
        await machine?.installation.remove();
      }
      stuck.closeAllConnections();
      stuck.close();
      await registry[Symbol.asyncDispose]();
      await hub[Symbol.asyncDispose]();
    });

    async function makeMachine(): Promise<Machine> {
      const named = [registry.address, stuckAddress];
      const registries = hub.registries as { readonly insecure: readonly string[] };
      const installation = await makeInstallation({
        config: { sandboxes: { defaultBackend: "linux-namespaces" } },
        plugins: (directory) => ({
          "jupyter": undefined,
          "local-process": undefined,
          "linux-namespaces": { directory: join(directory, "namespaces") },
          "templates": {
            registries: { ...registries, private: named, insecure: [...registries.insecure, ...named] },
          },
        }),
      });
      return { installation, server: await ServerProcess.start(installation.configFile) };
    }

    const words = (machine: Machine | undefined, action: string, args: readonly string[]) => {
      assert.ok(machine);
      const connection = ["pull", "build", "push"].includes(action) ? ["--url", machine.server.url] : [];
      return ["template", action, machine.installation.configFile, ...args, ...connection];
    };
    const template = async (machine: Machine | undefined, action: string, ...args: readonly string[]) => {
      const { code, stdout, stderr } = await startCoppice(words(machine, action, args), KEY).end;
      return { code, stdout: stdout.toString(), stderr };
    };
    const ask = async (machine: Machine | undefined, method: string, path: string, body?: unknown) => {
      const answer = await exchange(machine?.server.url ?? "", {
        method,
        path,
        headers: { "x-api-key": API_KEY },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      return answer.json() as Record<string, unknown>;
    };
    /** Makes a sandbox of a template. @returns its id */
    const create = async (machine: Machine | undefined, name: string): Promise<string> => {
      const made = await ask(machine, "POST", "/sandboxes", { templateID: name, timeout: 600 });
      assert.ok(typeof made["sandboxID"] === "string", JSON.stringify(made));
      return made["sandboxID"];
    };
    /** Output of a script in a sandbox. */
    const run = async (
      machine: Machine | undefined,
      id: string,
      script: string,
      user = "user",
    ): Promise<string> => {
      const args = ["--url", machine?.server.url ?? "", "--user", user, id, "--", "sh", "-c", script];
      const { stdout, stderr } = await startCoppice(["exec", ...args], KEY).end;
      return stdout.toString() + stderr;
    };

    const SEEN =
      "cd /srv; pwd; ls; cat both link; stat -c '%U %a' a.txt c both; cat /tmp/started; [ both -ef hard ]; echo $?";
    const EXPECTED =
      "/srv\na.txt\nb.txt\nboth\nc\ndeep\nhard\nlink\na.txt\nb.txt\nsub/deep/d\nuser 644\nuser 751\nroot 4755\nhello\n0\n";

    it("a folder with a Dockerfile is built with its files, but for ignored ones, and again from the cache", async () => {
      const limits = ["--cpu-count", "4", "--memory-mb", "512"];
      const args = ["app:v1", folder, ...limits, "--ready-cmd", "[ -f /tmp/started ]"];
      const built = await template(one, "build", ...args);
      assert.equal(built.code, 0, built.stdout + built.stderr);
      assert.match(built.stdout, /\[builder 5\/8\] COPY \*\.txt[^]*\nBuild finished, took \d+s\n$/);
      assert.match(built.stderr, /^uploading: /m);
      const id = await create(one, "app:v1");
      assert.equal(await run(one, id, SEEN), EXPECTED);
      assert.equal(await run(one, id, "ls deep; [ -e secret.txt ] || echo none"), "d\nnone\n");
      const again = await template(one, "build", ...args);
      assert.equal(again.code, 0, again.stderr);
      assert.doesNotMatch(again.stdout, /^\[builder/m);
      assert.doesNotMatch(again.stderr, /uploading/);
    });

    it("a pushed template is the same on another machine, with its limits and start command, and has one digest", async () => {
      const image = `${registry.address}/team/app:v1`;
      const pushed = await template(one, "push", "app:v1", image);
      assert.match(pushed.stdout, /^127\.0\.0\.1:\d+\/team\/app:v1@sha256:[0-9a-f]{64}\n$/, pushed.stderr);
      assert.match(pushed.stderr, /^packing: [^]*^pushing: /m);
      assert.equal((await template(one, "push", "app:v1", image)).stdout, pushed.stdout);

      const pulled = await template(other, "pull", "copy:v2", image);
      assert.equal(pulled.code, 0, pulled.stdout + pulled.stderr);
      assert.equal(await run(other, await create(other, "copy:v2"), SEEN), EXPECTED);
      const shown = JSON.parse((await template(other, "inspect", "copy")).stdout) as {
        readonly builds: readonly { readonly limits: object; readonly workdir: string }[];
      };
      assert.deepEqual(shown.builds[0]?.limits, { cpuCount: 4, memoryMiB: 512 });
      assert.equal(shown.builds[0].workdir, "/srv");
    });

    it("a snapshot becomes a template elsewhere", async () => {
      const id = await create(one, "app:v1");
      await run(one, id, "echo changed > c; rm a.txt; echo new > /home/user/new", "root");
      const taken = await ask(one, "POST", `/sandboxes/${id}/snapshots`, { name: "saved" });
      const image = `${registry.address}/team/saved`;
      const pushed = await template(one, "push", "--snapshot", String(taken["snapshotID"]), image);
      assert.equal(pushed.code, 0, pushed.stderr);
      assert.equal((await template(other, "pull", "saved", image, "--cpu-count", "2")).code, 0);
      const copy = await create(other, "saved");
      assert.equal(
        await run(other, copy, "pwd; cat c ~/new /tmp/started; ls -A"),
        "/srv\nchanged\nnew\nhello\nb.txt\nboth\nc\ndeep\nhard\nlink\n",
      );
    });

    it("a terminal shows a bar", async () => {
      const args = words(one, "push", ["app:v1", `${registry.address}/team/terminal`]);
      const { code, stdout } = await startCoppiceInTerminal(args, KEY).end;
      assert.equal(code, 0, stdout.toString());
      assert.match(
        stdout.toString(),
        /\rpushing \[#{24}\] 100 % {2}\d+\.\d of \d+\.\d MiB|\r.*pushing \[#{24}\]/,
      );
    });

    it("Ctrl-C cancels a build, and a push", async () => {
      const recipe = join(folder, "recipe.yaml");
      await writeFile(
        recipe,
        JSON.stringify({ from: { template: "app:v1" }, steps: "RUN echo begins; sleep 600" }),
      );
      const building = startCoppice(words(one, "build", ["long", recipe]), KEY);
      await eventually("the step", () => building.printed().includes("[stdout]: begins"));
      building.child.kill("SIGINT");
      const ended = await building.end;
      assert.equal(ended.code, 130, ended.stderr);
      assert.match(ended.stderr, /the build has failed: build was cancelled/);

      const pushing = startCoppice(words(one, "push", ["app:v1", `${stuckAddress}/a`]), KEY);
      const stderr: Buffer[] = [];
      pushing.child.stderr?.on("data", (chunk: Buffer) => stderr.push(chunk));
      await eventually("the push", () => Buffer.concat(stderr).includes("pushing"));
      pushing.child.kill("SIGINT");
      assert.equal((await pushing.end).code, 130);
      await eventually("nothing is left", async () => (await left()).length === 0);
    });

    it("kill -9 during a push leaves nothing half, here and in the registry", async () => {
      assert.ok(one);
      const pushing = startCoppice(words(one, "push", ["app:v1", `${stuckAddress}/a`]), KEY);
      await eventually("its files", async () => (await left()).length > 0);
      one.server.signal("SIGKILL");
      await one.server.ended;
      const { code, stderr } = await pushing.end;
      assert.equal(code, 1, stderr);
      const checked = await template(one, "fsck");
      assert.equal(checked.stdout, "0 lost, 0 not needed, 0 unknown\n", checked.stderr);
      one.server = await ServerProcess.start(one.installation.configFile);
      assert.deepEqual(await left(), []);
      assert.equal(await run(one, await create(one, "app:v1"), SEEN), EXPECTED);
    });

    it("says what is wrong with what it is asked", async () => {
      const broken = join(folder, "Broken");
      await writeFile(broken, "FROM small\nCOPY missing /\n");
      for (const [code, told, action, ...args] of [
        [64, /missing required argument 'image'/, "pull", "x"],
        [64, /--cpu-count is a number/, "pull", "x", "small", "--cpu-count", "many"],
        [64, /an account is --username and --password-stdin/, "pull", "x", "small", "--username", "me"],
        [1, /image 'small:2' not found/, "pull", "x", "small:2"],
        [1, /CPU count must be 1 or an even number/, "pull", "x", "small", "--cpu-count", "3"],
        [1, /no such file/, "build", "x", join(folder, "nothing")],
        [1, /COPY: the folder has no 'missing'/, "build", "x", folder, "--file", broken],
        [1, /there is no built template 'y'/, "push", "y", `${registry.address}/y`],
        [1, /has no public address/, "push", "app:v1", "127.0.0.1:1/y"],
      ] as const) {
        const said = await template(one, action, ...args);
        assert.deepEqual([said.code, told.test(said.stderr)], [code, true], said.stderr);
      }
    });

    /** Files of pushes on the first machine. */
    async function left(): Promise<readonly string[]> {
      const directory = one?.installation.directory ?? "";
      const found = await Promise.all([
        readdir(join(directory, "data/templates/pulls")).catch(() => []),
        readdir(join(directory, "namespaces/packing")),
      ]);
      return found.flat();
    }
  },
);
