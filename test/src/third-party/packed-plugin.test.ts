import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { agentBinary } from "@coppice/agent";
import { API_KEY } from "../harness/server/api-key.js";
import { exchange } from "../harness/clients/exchange.js";
import { makeInstallation, ServerProcess } from "../harness/server/server-process.js";

const run = promisify(execFile);
const REPOSITORY = fileURLToPath(new URL("../../..", import.meta.url));
const NODE_MODULES = join(REPOSITORY, "node_modules");
const TSC = join(NODE_MODULES, "typescript", "bin", "tsc");

const PROTO = join(REPOSITORY, "plugins/commands/dist/generated/process/process_pb.js");

/** A plugin with a second copy of core: its classes, keys and maps are others of the same names. */
const PLUGIN = `
import { definePlugin, HttpError, messageStreamOf, permit, requestOf, SandboxError, Sandboxes, sandboxesOf } from "@coppice/core";
import { Backends } from "@coppice/core/backend";
import { MemoryBackend } from "@coppice/core/testing";
import { agentBinary } from "@coppice/agent";
import { Process } from ${JSON.stringify(PROTO)};

export default definePlugin({
  name: "elsewhere",
  requires: { backends: Backends, sandboxes: Sandboxes },
  setup(plugin, { backends, sandboxes }) {
    const router = plugin.http("api");
    router.get("/elsewhere/sandbox-error", () => {
      throw new SandboxError({ reason: "elsewhere.exists", code: "already_exists" }, "there is one");
    });
    router.get("/elsewhere/http-error", () => {
      throw new HttpError(418, "a teapot", { reason: "elsewhere.teapot" });
    });
    router.get("/elsewhere/agent", (ctx) => { ctx.body = { path: agentBinary() }; });
    plugin.guard("ops", () => ({ tenant: "t", name: "reader", scopes: new Set(["read"]) }));
    plugin.http("ops").post("/elsewhere/reading", permit("read"), (ctx) => { ctx.status = 204; });
    plugin.rpc("api").service(Process, {
      list(_, context) {
        const { id, surface } = requestOf(context);
        const count = sandboxesOf(context, sandboxes).list().length;
        return { processes: [{ pid: count, tag: surface + " " + id, config: { cmd: String(sandboxes.list().length) } }] };
      },
      async *connect(_, context) {
        yield { event: { event: { case: "keepalive", value: {} } } };
        const message = JSON.stringify({ event: { end: { status: "sent past Connect" } } });
        await messageStreamOf(context).send(Buffer.concat([Buffer.from([0, 0, 0, 0, message.length]), Buffer.from(message)]));
      },
    });
    backends.add(new MemoryBackend());
  },
});
`;

describe("core as others install it: packed, in a folder outside of the tree", { timeout: 240_000 }, () => {
  let home: string;

  /** What `npm install` does with the packed file of a package, without a registry. @returns its folder. */
  async function install(name: string): Promise<string> {
    const folder = join(home, "node_modules", "@coppice", name);
    await mkdir(folder, { recursive: true });
    const packing = ["pack", "--silent", "--ignore-scripts", "--offline", "--pack-destination", home];
    const { stdout } = await run("npm", packing, { cwd: join(REPOSITORY, name) });
    await run("tar", ["-xzf", join(home, stdout.trim()), "--strip-components=1", "-C", folder]);
    return folder;
  }

  before(async () => {
    home = await realpath(await mkdtemp(join(tmpdir(), "coppice-packed-")));
    const modules = join(home, "node_modules");
    await install("agent");
    await install("conformance");
    const core = await install("core");
    const { dependencies } = JSON.parse(await readFile(join(core, "package.json"), "utf8")) as {
      readonly dependencies: Readonly<Record<string, string>>;
    };
    for (const name of Object.keys(dependencies)) {
      await mkdir(dirname(join(modules, name)), { recursive: true });
      await symlink(join(NODE_MODULES, name), join(modules, name));
    }
    await writeFile(join(home, "package.json"), JSON.stringify({ type: "module" }));
    await writeFile(join(home, "elsewhere.js"), PLUGIN);
  });
  after(() => rm(home, { recursive: true, force: true }));

  it("errors of its copy are understood by the server, which warns of the second copy", async () => {
    const installation = await makeInstallation({
      config: {
        sandboxes: { defaultBackend: "local-process", templates: { base: {}, there: { backend: "memory" } } },
      },
      plugins: () => ({ [join(home, "elsewhere.js")]: {} }),
    });
    try {
      await using server = await ServerProcess.start(installation.configFile);
      const headers = { "x-api-key": API_KEY };
      const refused = await exchange(server.url, { path: "/elsewhere/sandbox-error", headers });
      assert.deepEqual(
        [refused.status, refused.json()],
        [409, { code: 409, message: "there is one", reason: "elsewhere.exists" }],
      );
      const teapot = await exchange(server.url, { path: "/elsewhere/http-error", headers });
      assert.deepEqual(
        [teapot.status, teapot.json()],
        [418, { code: 418, message: "a teapot", reason: "elsewhere.teapot" }],
      );
      const rpc = (method: string, type: string, body: string) =>
        exchange(server.url, {
          method: "POST",
          path: `/process.Process/${method}`,
          headers: {
            ...headers,
            "content-type": type,
            "connect-protocol-version": "1",
            "x-request-id": "from-here",
          },
          body,
        });
      const listed = await rpc("List", "application/json", "{}");
      assert.deepEqual(
        [listed.status, listed.json()],
        [200, { processes: [{ config: { cmd: "0" }, tag: "api from-here" }] }],
      );
      const streamed = await rpc("Connect", "application/connect+json", "\0\0\0\0\x02{}");
      assert.match(streamed.text, /keepalive.*sent past Connect/s);
      const reading = await exchange(server.urls["ops"] ?? "", {
        method: "POST",
        path: "/elsewhere/reading",
      });
      assert.equal(reading.status, 204, "a scope that its copy declares counts");
      const { path } = (await exchange(server.url, { path: "/elsewhere/agent", headers })).json() as {
        readonly path?: string;
      };
      assert.equal(path, agentBinary(), "its copy of the agent's client finds the program of the server");
      const metrics = (await exchange(server.urls["ops"] ?? "", { path: "/metrics" })).text;
      assert.doesNotMatch(metrics, /^# TYPE \w+_total gauge$/m);
      const warnings = server.printed.filter((line) => line.includes("brings a copy of @coppice/core"));
      assert.equal(warnings.length, 1, server.printed.join("\n"));
      assert.match(warnings[0] ?? "", /"plugin":"elsewhere"/);
    } finally {
      await installation.remove();
    }
  });

  it("has its licence and a page, and no maps of sources that are not there", async () => {
    for (const name of ["core", "agent", "conformance"]) {
      const names = await readdir(join(home, "node_modules", "@coppice", name), { recursive: true });
      assert.ok(names.includes("LICENSE") && names.includes("README.md"), names.slice(0, 9).join());
      const surplus = names.filter((one) => one.endsWith(".map") || one.includes(".test."));
      assert.deepEqual(surplus, []);
    }
  });

  it("the kit understands errors of another copy, too", async () => {
    const script = `
      import { runCase } from ${JSON.stringify(join(REPOSITORY, "conformance", "dist", "index.js"))};
      import { MemoryBackend } from ${JSON.stringify(join(REPOSITORY, "core", "dist", "testing.js"))};
      import { MemoryBackend as Elsewhere } from "@coppice/core/testing";
      const dispose = { [Symbol.asyncDispose]: async () => {} };
      const refusing = { name: "a case", group: "files", run: (context) =>
        context.refuses(context.sandbox.files.stat("/nothing/there"), "not_found") };
      for (const backend of [new MemoryBackend(), new Elsewhere()]) {
        const { outcome, reason } = await runCase(refusing, { backend, ...dispose });
        console.log(outcome, reason ?? "");
      }`;
    await writeFile(join(home, "kit.js"), script);
    const { stdout } = await run(process.execPath, [join(home, "kit.js")]);
    assert.equal(stdout, "passed \npassed \n");
  });

  it("its types are whole: the sample of the manual compiles with nothing but core's own dependencies", async () => {
    const manual = await readFile(join(REPOSITORY, "docs", "writing-a-plugin.md"), "utf8");
    const samples = [...manual.matchAll(/```ts\n(.*?)```/gs)].map(([, text = ""]) => text);
    const sample = samples.find((text) => text.includes('name: "census"'));
    const test = samples.find((text) => text.includes("startTestServer"));
    assert.ok(sample !== undefined && test !== undefined, "the samples are not in the manual any more");
    const directory = join(home, "typed");
    await mkdir(directory);
    await writeFile(join(directory, "census.ts"), sample);
    await writeFile(join(directory, "census.test.ts"), test);
    const [, settings = ""] = /```json\n(\{\s*"compilerOptions".*?)```/s.exec(manual) ?? [];
    const { compilerOptions } = JSON.parse(settings) as { readonly compilerOptions: object };
    await writeFile(
      join(directory, "tsconfig.json"),
      JSON.stringify({ compilerOptions: { ...compilerOptions, skipLibCheck: false, noEmit: true } }),
    );
    await run(process.execPath, [TSC, "-p", directory]).catch((error: unknown) => {
      assert.fail(`tsc: ${(error as { readonly stdout: string }).stdout}`);
    });
  });
});
