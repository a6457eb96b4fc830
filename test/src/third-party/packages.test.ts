import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { cp, mkdir, mkdtemp, readdir, readFile, realpath, rm, symlink, writeFile } from "node:fs/promises";
import type { IncomingMessage } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Sandbox } from "e2b";
import { WebSocket } from "ws";
import { API_KEY } from "../harness/server/api-key.js";
import { exchange } from "../harness/clients/exchange.js";
import { reasonWithoutIsolation } from "../harness/host/isolated.js";
import { ServerProcess } from "../harness/server/server-process.js";

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const TSC = join(ROOT, "node_modules", "typescript", "bin", "tsc");
/** Of somebody else's shell: with the compiler, which is in no package here, and not within a test. */
const AUTHORS_ENVIRONMENT = {
  ...process.env,
  PATH: `${join(ROOT, "node_modules", ".bin")}:${process.env["PATH"]}`,
  NODE_TEST_CONTEXT: undefined,
};
const PLATFORM = `${process.platform}-${process.arch}`;
const ZIG = process.env["COPPICE_ZIG"];

/** The cases of the kit that a backend is put to, in place of all in a minute. */
const BRIEF = "--test-name-pattern=provision: |facets: ";

/** Functions of `scripts/release`. */
interface Release {
  readonly packPackages: (
    into: string,
    platforms: Readonly<Record<string, string>>,
  ) => Promise<readonly string[]>;
  readonly installPackages: (folder: string, tarballs: readonly string[]) => Promise<void>;
  readonly writeStart: (folder: string) => Promise<void>;
  readonly buildPrograms: (platform: string, python: string, folder: string) => Promise<void>;
}

const release = (name: string): Promise<Release> => import(join(ROOT, "scripts", "release", `${name}.mjs`));

interface Manifest {
  readonly name: string;
  readonly version: string;
  readonly exports?: Readonly<Record<string, string | { readonly types: string; readonly default: string }>>;
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly peerDependencies?: Readonly<Record<string, string>>;
  readonly devDependencies?: Readonly<Record<string, string>>;
  readonly engines?: { readonly node?: string };
  readonly license?: string;
}

/** A plugin by somebody else, in TypeScript. */
const PLUGIN = `
import { agentBinary } from "@coppice/agent";
import { definePlugin, HttpError, SandboxError, declareReasons, requestOf } from "@coppice/core";

const REASONS = declareReasons({ already_exists: { elsewhere_exists: "There is one." } });

export default definePlugin({
  name: "elsewhere",
  reasons: REASONS,
  setup(plugin) {
    const router = plugin.http("api");
    router.get("/elsewhere/sandbox-error", () => {
      throw new SandboxError(REASONS.elsewhere_exists, "there is one");
    });
    router.get("/elsewhere/http-error", () => {
      throw new HttpError(418, "a teapot", { reason: "elsewhere.teapot" });
    });
    router.get("/elsewhere/about", (ctx) => {
      ctx.body = { agent: agentBinary(), surface: requestOf(ctx).surface };
    });
  },
});
`;

async function readJson(path: string): Promise<unknown> {
  return JSON.parse(await readFile(path, "utf8"));
}

/** Output of a program that ends, also with another code than 0. */
async function outcomeOf(
  program: string,
  parameters: readonly string[],
  cwd: string,
): Promise<{ readonly code: unknown; readonly text: string }> {
  try {
    const { stdout, stderr } = await run(program, parameters, { cwd, env: AUTHORS_ENVIRONMENT });
    return { code: 0, text: stdout + stderr };
  } catch (error) {
    const { code, stdout, stderr } = error as Record<"code" | "stdout" | "stderr", string>;
    return { code, text: stdout + stderr };
  }
}

async function npm(cwd: string, ...parameters: readonly string[]): Promise<void> {
  const quiet = ["--offline", "--no-audit", "--no-fund", "--loglevel=error"];
  await run("npm", [...parameters, ...quiet], { cwd, env: AUTHORS_ENVIRONMENT });
}

describe("the packages, packed and installed in an empty folder", { timeout: 540_000 }, () => {
  let home: string;
  let scratch: string;
  let coppice: string;
  let packed: readonly string[];
  let install: Release["installPackages"];
  /** The tarball of a plugin by somebody else. */
  let plugin: string;

  before(async () => {
    scratch = await realpath(await mkdtemp(join(tmpdir(), "coppice-packages-")));
    home = join(scratch, "home");
    const { packPackages, installPackages } = await release("packages");
    const programs = join(scratch, "programs");
    // Without zig those that set-up has built.
    if (ZIG !== undefined) await (await release("programs")).buildPrograms(PLATFORM, ZIG, programs);
    else {
      const built = join(ROOT, ".toolchain", "agent");
      const current = (await readFile(join(built, "current"), "utf8")).trim();
      await cp(join(built, current), programs, { recursive: true });
    }
    install = installPackages;
    packed = await packPackages(join(scratch, "tarballs"), { [PLATFORM]: programs });
    await installPackages(home, packed);
    coppice = join(home, "node_modules", ".bin", "coppice");
    plugin = await packedPlugin();
    await npm(home, "install", plugin);
  });
  after(() => rm(scratch, { recursive: true, force: true }));

  /** The plugin, compiled and packed in a folder of its author. */
  async function packedPlugin(): Promise<string> {
    const folder = join(scratch, "author");
    await mkdir(folder);
    await symlink(join(home, "node_modules"), join(folder, "node_modules"));
    await writeFile(join(folder, "index.ts"), PLUGIN);
    const peerDependencies = { "@coppice/agent": "^0.1.0", "@coppice/core": "^0.1.0" };
    const manifest = { name: "@acme/coppice-elsewhere", version: "1.0.0", type: "module" };
    const about = { ...manifest, exports: "./index.js", peerDependencies };
    await writeFile(join(folder, "package.json"), JSON.stringify(about));
    const manual = await readFile(join(ROOT, "docs", "writing-a-plugin.md"), "utf8");
    const samples = [...manual.matchAll(/```ts\n(.*?)```/gs)].map(([, text = ""]) => text);
    const sample = samples.find((text) => text.includes('name: "census"'));
    const test = samples.find((text) => text.includes("startTestServer"));
    assert.ok(sample !== undefined && test !== undefined, "the samples are not in the manual any more");
    await writeFile(join(folder, "census.ts"), sample);
    await writeFile(join(folder, "census.test.ts"), test);
    // Declarations of every package are read, and none is trusted unread.
    const all = await installed();
    const entries = all.flatMap(({ name, exports = {} }) =>
      Object.entries(exports)
        .filter(([, target]) => typeof target !== "string")
        .map(([entry]) => join(name, entry)),
    );
    const imports = entries.map((entry, index) => `export * as e${index} from "${entry}";\n`);
    await writeFile(join(folder, "all.ts"), imports.join(""));
    await compile(folder, ["index.ts", "all.ts", "census.ts", "census.test.ts"]);
    await npm(folder, "pack");
    return join(folder, "acme-coppice-elsewhere-1.0.0.tgz");
  }

  /** Compiles with the settings of the manual. */
  async function compile(folder: string, files: readonly string[]): Promise<void> {
    const manual = await readFile(join(ROOT, "docs", "writing-a-plugin.md"), "utf8");
    const [, settings = ""] = /```json\n(\{\s*"compilerOptions".*?)```/s.exec(manual) ?? [];
    const { compilerOptions } = JSON.parse(settings) as { readonly compilerOptions: object };
    const tsconfig = { compilerOptions: { ...compilerOptions, skipLibCheck: false }, exclude: [], files };
    await writeFile(join(folder, "tsconfig.json"), JSON.stringify(tsconfig));
    const { code, text } = await outcomeOf(process.execPath, [TSC, "-p", "."], folder);
    assert.equal(code, 0, `tsc: ${text}`);
  }

  async function installed(): Promise<readonly (Manifest & { readonly folder: string })[]> {
    const scope = join(home, "node_modules", "@coppice");
    const folders = [
      ...(await readdir(scope)).map((name) => join(scope, name)),
      ...["coppice", "create-coppice-plugin"].map((name) => join(scope, "..", name)),
    ];
    return Promise.all(
      folders.map(async (folder) => ({
        ...((await readJson(join(folder, "package.json"))) as Manifest),
        folder,
      })),
    );
  }

  async function writeConfig(folder: string, plugins: Readonly<Record<string, unknown>>): Promise<string> {
    const listener = { host: "127.0.0.1", port: 0 };
    const config = {
      listeners: { api: listener, ops: listener },
      dataDir: join(folder, "data"),
      log: { level: "warn" },
      plugins: {
        "access": { apiKeys: [API_KEY] },
        "sandbox-api": {},
        "envd-compat": {},
        "commands": {},
        "files": {},
        "@acme/coppice-elsewhere": {},
        ...plugins,
      },
    };
    const file = join(folder, "coppice.yaml");
    await writeFile(file, JSON.stringify(config));
    return file;
  }

  /** Starts the installed server and does with it what a user does. */
  async function use(plugins: Readonly<Record<string, unknown>>): Promise<ServerProcess> {
    const file = await writeConfig(home, plugins);
    const server = await ServerProcess.start(file, { COPPICE_AGENT: "" }, [], coppice);
    const sandbox = await Sandbox.create({ apiUrl: server.url, sandboxUrl: server.url, apiKey: API_KEY });
    await sandbox.files.write("said.txt", "from a tarball");
    const { stdout } = await sandbox.commands.run("cat said.txt; echo; printf %s $0 | tail -c 4");
    assert.equal(stdout, "from a tarball\nbash");
    assert.equal(await sandbox.kill(), true);
    return server;
  }

  it("have one version, a licence, a page, what they export, and nothing of the tests", async () => {
    const all = await installed();
    assert.equal(all.length, packed.length);
    for (const { folder, name, version, license, engines, exports = {}, ...rest } of all) {
      assert.deepEqual([version, license, engines?.node], ["0.1.0", "Apache-2.0", ">=22.22"], name);
      const names = await readdir(folder, { recursive: true });
      assert.ok(names.includes("LICENSE") && names.includes("README.md"), name);
      const surplus = names.filter(
        (one) =>
          /\.map$|\.test\.|(^|\/)src\/|tsbuildinfo$/.test(one) && !/^(node_modules|template)\//.test(one),
      );
      assert.deepEqual(surplus, [], name);
      for (const target of Object.values(exports))
        for (const file of typeof target === "string" ? [target] : Object.values(target))
          assert.ok(names.includes(file.slice(2)), `${name} has no ${file}`);
      const own = Object.entries({ ...rest.dependencies, ...rest.peerDependencies });
      for (const [other, range] of own.filter(([each]) => each.startsWith("@coppice/")))
        assert.equal(range, `^${version}`, `${name}: ${other}`);
      if (name.startsWith("@coppice/plugin-")) {
        assert.equal(rest.peerDependencies?.["@coppice/core"], `^${version}`, name);
        assert.equal(rest.dependencies?.["@coppice/core"], undefined, name);
      }
    }
  });

  it("serve with a plugin of somebody else, whose errors have their codes", async () => {
    await using server = await use({ "local-process": {} });
    const headers = { "x-api-key": API_KEY };
    const refused = await exchange(server.url, { path: "/elsewhere/sandbox-error", headers });
    assert.deepEqual(
      [refused.status, refused.json()],
      [409, { code: 409, message: "there is one", reason: "elsewhere_exists" }],
    );
    const teapot = await exchange(server.url, { path: "/elsewhere/http-error", headers });
    assert.deepEqual(
      [teapot.status, teapot.json()],
      [418, { code: 418, message: "a teapot", reason: "elsewhere.teapot" }],
    );
    const { agent, surface } = (
      await exchange(server.url, { path: "/elsewhere/about", headers })
    ).json() as Record<string, string>;
    assert.equal(surface, "api");
    assert.equal(agent, join(home, "node_modules", "@coppice", `agent-${PLATFORM}`, "coppice-agent"));
    const { text } = await exchange(server.urls["ops"] ?? "", { path: "/metrics" });
    const { stdout } = await run(coppice, ["--version"]);
    const [, commit] = /^coppice 0\.1\.0 \(commit ([0-9a-f]{12})\)\n$/.exec(stdout) ?? [];
    const node = process.versions.node;
    const release = RegExp(
      String.raw`^coppice_build_info\{version="0\.1\.0",commit="${commit}\w{28}",node="${node}"\} 1$`,
      "m",
    );
    assert.match(text, release);
    assert.deepEqual(server.printed.filter((line) => line.startsWith("{")).join("\n"), "");
  });

  it("serve sandboxes of linux-namespaces", { skip: reasonWithoutIsolation() }, async () => {
    await using server = await use({ "linux-namespaces": { directory: join(home, "namespaces") } });
    const compiled = await readdir(join(home, "namespaces", "programs")).catch(() => []);
    assert.equal(compiled.length, ZIG === undefined ? 1 : 0, "the launcher of the package is used as it is");
    assert.deepEqual(server.printed.filter((line) => line.startsWith("{")).join("\n"), "");
  });

  it("start from anywhere by the program of the self-contained tarball, also through a link", async () => {
    const folder = join(scratch, "standalone");
    await (await release("standalone")).writeStart(folder);
    await symlink(process.execPath, join(folder, "bin", "node"));
    await symlink(home, join(folder, "lib"));
    await symlink(join(folder, "bin", "coppice"), join(scratch, "linked"));
    const { code, text } = await outcomeOf(join(scratch, "linked"), ["--version"], "/");
    assert.equal(code, 0, text);
    assert.match(text, /^coppice 0\.1\.0 \(commit /);
    const help = await outcomeOf(join(scratch, "linked"), ["--help"], "/");
    assert.match(help.text, /^ {2}start .*^ {2}ps /ms, "it has the verbs of clients");
  });

  describe("make the project of an author by `npm create coppice-plugin`", () => {
    const create = (folder: string, ...parameters: readonly string[]) =>
      outcomeOf(join(home, "node_modules", ".bin", "create-coppice-plugin"), parameters, folder);
    let made = 0;

    /** Makes a project, runs what its README says, and installs its tarball beside the server. */
    async function makeAndInstall(kind: string, name: string): Promise<void> {
      const folder = join(scratch, `made-${++made}`);
      await mkdir(join(folder, ".git"), { recursive: true });
      const created = await create(folder, "--kind", kind, "--name", name);
      assert.equal(created.code, 0, created.text);
      assert.match(created.text, /^@acme\/\S+ is made\. Next: npm install && npm test;/);
      await symlink(join(home, "node_modules"), join(folder, "node_modules"));
      const about = (await readJson(join(folder, "package.json"))) as Manifest;
      const core = (await readJson(join(home, "node_modules/@coppice/core/package.json"))) as Manifest;
      for (const [other, version] of Object.entries(about.dependencies ?? {}))
        assert.equal(version, core.dependencies?.[other], other);
      const isBrief = kind === "backend" && process.env["COPPICE_TEST_VARIANTS"] !== "all";
      if (isBrief) assert.equal((await outcomeOf("npm", ["run", "build"], folder)).code, 0);
      const tested = isBrief
        ? await outcomeOf(process.execPath, ["--test", BRIEF, "dist/conformance.test.js"], folder)
        : await outcomeOf("npm", ["test"], folder);
      assert.equal(tested.code, 0, tested.text);
      assert.match(tested.text, /^ℹ pass [1-9]\d*$/m);
      await npm(folder, "pack");
      const names = await readdir(folder);
      const tarball = names.find((one) => one.endsWith(".tgz")) ?? "";
      for (const one of [".gitignore", ".github", "README.md"]) assert.ok(names.includes(one), one);
      await npm(home, "install", join(folder, tarball));
      const packed = await readdir(join(home, "node_modules", name), { recursive: true });
      assert.deepEqual(
        packed.filter((one) => /src|\.test\./.test(one)),
        [],
      );
    }

    it("a plugin, which a server loads by its configuration alone, and whose errors have their codes", async () => {
      await makeAndInstall("plugin", "@acme/coppice-plugin-life-left");
      await using server = await use({
        "local-process": {},
        "@acme/coppice-plugin-life-left": { leastSeconds: 200 },
      });
      const connection = { apiUrl: server.url, sandboxUrl: server.url, apiKey: API_KEY };
      const ask = (id: string) =>
        exchange(server.url, { path: `/life-left/${id}`, headers: { "x-api-key": API_KEY } });
      const sandbox = await Sandbox.create({ ...connection, timeoutMs: 300_000 });
      const long = await ask(sandbox.sandboxId);
      assert.equal(long.status, 200, long.text);
      await sandbox.setTimeout(60_000);
      const short = await ask(sandbox.sandboxId);
      assert.equal(short.status, 400);
      assert.equal((short.json() as { readonly reason: unknown }).reason, "life-left.ends_soon");
      assert.equal((await ask("nothere")).status, 404);
      assert.equal((await exchange(server.url, { path: `/life-left/${sandbox.sandboxId}` })).status, 401);
    });

    it("a backend that conforms, which a server loads by its configuration alone, and whose errors have their codes", async () => {
      await makeAndInstall("backend", "@acme/coppice-drawers");
      await using server = await use({ "@acme/coppice-drawers": { directory: join(home, "drawers") } });
      const connection = { apiUrl: server.url, sandboxUrl: server.url, apiKey: API_KEY };
      const sandbox = await Sandbox.create(connection);
      const info = await sandbox.files.getInfo("/home/user");
      assert.deepEqual([info.path, info.type], ["/home/user", "dir"]);
      await assert.rejects(sandbox.files.read("missing.txt"), { name: "FileNotFoundError" });
      await assert.rejects(sandbox.commands.run("true", { cwd: "/nowhere" }), {
        name: "InvalidArgumentError",
        message: /cwd '\/nowhere' does not exist/,
      });
      await sandbox.kill();
      const refused = await exchange(server.url, {
        method: "POST",
        path: "/sandboxes",
        headers: { "x-api-key": API_KEY, "content-type": "application/json" },
        body: JSON.stringify({ templateID: "base", allow_internet_access: false }),
      });
      assert.equal(refused.status, 400, refused.text);
      assert.match(refused.text, /cannot be kept from the internet/);
      assert.deepEqual(await readdir(join(home, "drawers")), []);
    });

    it("not in a folder with files, nor with a wrong name or kind", async () => {
      const folder = join(scratch, "refused");
      await mkdir(folder);
      const [named, plugin] = [
        ["--name", "@acme/coppice-x"],
        ["--kind", "plugin"],
      ] as const;
      const wrong: readonly (readonly [RegExp, ...string[]])[] = [
        [/--kind is missing/, ...named],
        [/--name is missing/, ...plugin],
        [/a kind is backend or plugin, not "worm\\u001b"/, ...named, "--kind", "worm\u001b"],
        [/a package is @scope\/name .*, not "x"/, ...plugin, "--name", "x"],
        [/not "@acme\/\.\.\/x"/, ...plugin, "--name", "@acme/../x"],
        [/Unknown option '--color'/, "--color"],
        [/one folder at most/, ...plugin, ...named, "a", "b"],
        [/--packages: .*ENOENT/, ...plugin, ...named, "--packages", "nowhere"],
        [/has no coppice-core-/, ...plugin, ...named, "--packages", "."],
      ];
      for (const [message, ...parameters] of wrong) {
        const { code, text } = await create(folder, ...parameters);
        assert.deepEqual([code, message.test(text)], [2, true], text);
      }
      await writeFile(join(folder, "kept.txt"), "kept");
      const [full, file] = [
        await create(folder, ...plugin, ...named),
        await create(folder, ...plugin, ...named, "kept.txt"),
      ];
      assert.deepEqual([full.code, file.code], [2, 2]);
      assert.match(full.text, /the folder ".*refused" is not empty/);
      assert.match(file.text, /kept\.txt" is no folder/);
      assert.deepEqual(await readdir(folder), ["kept.txt"]);
    });

    it("with Coppice's packages from a folder of tarballs, where no registry has them", async () => {
      const folder = join(scratch, "unpublished");
      await mkdir(folder);
      const named = [
        "--kind",
        "backend",
        "--name",
        "@acme/coppice-x",
        "--packages",
        join(scratch, "tarballs"),
      ];
      const { code, text } = await create(folder, ...named);
      assert.equal(code, 0, text);
      const about = (await readJson(join(folder, "package.json"))) as Manifest;
      const { typescript: _, ...own } = about.devDependencies ?? {};
      const names = ["agent", "conformance", "core", `agent-${PLATFORM}`].map((name) => `@coppice/${name}`);
      assert.deepEqual(Object.keys(own).toSorted(), names.toSorted());
      for (const place of Object.values(own))
        assert.ok(existsSync(join(folder, place.slice("file:".length))), place);
      assert.equal(about.peerDependencies?.["@coppice/core"], "^0.1.0");
    });
  });

  it("build the examples for authors, which answer by Connect and by a WebSocket", async () => {
    for (const [name, ...files] of [
      ["rpc", "plugin.ts", "generated/usage_pb.ts"],
      ["socket", "plugin.ts"],
    ] as const) {
      const folder = join(scratch, "examples", name);
      await cp(join(ROOT, "examples", "plugins", name), folder, { recursive: true });
      await symlink(join(home, "node_modules"), join(folder, "node_modules"));
      await compile(folder, files);
      await npm(folder, "pack");
      await npm(home, "install", join(folder, `acme-coppice-usage-${name}-1.0.0.tgz`));
    }
    await using server = await use({
      "local-process": {},
      "@acme/coppice-usage-rpc": {},
      "@acme/coppice-usage-socket": {},
    });
    const sandbox = await Sandbox.create({ apiUrl: server.url, sandboxUrl: server.url, apiKey: API_KEY });
    await sandbox.commands.run("sleep 600", { background: true });
    const ask = (headers: Readonly<Record<string, string>>) =>
      exchange(server.url, {
        method: "POST",
        path: "/acme.usage.v1.UsageService/Get",
        headers: {
          "content-type": "application/json",
          "e2b-sandbox-id": sandbox.sandboxId,
          "e2b-sandbox-port": "49983",
          ...headers,
        },
        body: "{}",
      });
    const answer = await ask({
      "x-access-token": (sandbox as unknown as { readonly envdAccessToken: string }).envdAccessToken,
    });
    assert.equal(answer.status, 200, answer.text);
    const { memoryBytes } = answer.json() as Record<string, unknown>;
    assert.ok(Number(memoryBytes) > 0, answer.text);
    assert.equal((await ask({})).status, 401);

    const address = `${server.url.replace("http", "ws")}/usage/${sandbox.sandboxId}`;
    const socket = new WebSocket(address, { headers: { "x-api-key": API_KEY } });
    const [message] = (await once(socket, "message")) as [Buffer];
    const { memoryUsedBytes } = JSON.parse(message.toString()) as Record<string, unknown>;
    assert.ok(Number(memoryUsedBytes) > 0, message.toString());
    const closed = once(socket, "close");
    await sandbox.kill();
    await closed;
    const refused = new WebSocket(address, { headers: { "x-api-key": API_KEY } });
    const [, response] = (await once(refused, "unexpected-response")) as [unknown, IncomingMessage];
    refused.on("error", () => undefined).terminate();
    assert.equal(response.statusCode, 404);
  });

  it("run the conformance kit", async () => {
    const settings = JSON.stringify({ directory: join(home, "conforming") });
    const parameters = ["conform", "@coppice/plugin-local-process", settings, "--only", "a facet is there"];
    const { code, text } = await outcomeOf(coppice, parameters, home);
    assert.equal(code, 0, text);
    assert.match(text, /[1-9]\d* passed/);
  });

  describe("refuse a second core, and name the command that mends it,", () => {
    const check = (folder: string) => outcomeOf(coppice, ["check", join(folder, "coppice.yaml")], folder);

    it("when npm has put it below the plugin", async () => {
      await writeConfig(home, { "local-process": {} });
      const own = join(home, "node_modules", "@coppice", "core");
      const second = join(home, "node_modules/@acme/coppice-elsewhere/node_modules/@coppice/core");
      await cp(own, second, { recursive: true });
      const { code, text } = await outcomeOf(coppice, ["start", join(home, "coppice.yaml")], home);
      assert.equal(code, 78, text);
      assert.ok(text.includes(`a second @coppice/core: 0.1.0 in ${second}`), text);
      assert.ok(text.includes(`beside the server's 0.1.0 in ${own}`), text);
      assert.match(text, /coppice\.yaml:\d+:\d+: cannot load plugin '@acme\/coppice-elsewhere'/);
      assert.ok(text.includes(`\`npm dedupe\` in ${home},`), text);
      // `npm dedupe` asks the registry, which a test cannot.
      await rm(second, { recursive: true });
      const mended = await check(home);
      assert.equal(mended.code, 0, mended.text);
    });

    it("when npm has put it beside a plugin in the folder of the configuration", async () => {
      const folder = join(scratch, "apart");
      const second = join(folder, "node_modules", "@coppice", "core");
      await install(folder, [...packed.filter((path) => /-(core|agent)-\d/.test(path)), plugin]);
      await writeConfig(folder, { "local-process": {} });
      const { code, text } = await check(folder);
      assert.equal(code, 78, text);
      const own = join(home, "node_modules", "@coppice", "core");
      assert.ok(text.includes(`a second @coppice/core: 0.1.0 in ${second}, beside`), text);
      assert.ok(text.includes(`\`npm install ${own}\` in ${folder},`), text);
      await npm(folder, "install", own);
      const mended = await check(folder);
      assert.equal(mended.code, 0, mended.text);
    });
  });
});
