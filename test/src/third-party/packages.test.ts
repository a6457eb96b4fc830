import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readdir, readFile, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Sandbox } from "e2b";
import { API_KEY } from "../harness/server/api-key.js";
import { exchange } from "../harness/clients/exchange.js";
import { reasonWithoutIsolation } from "../harness/host/isolated.js";
import { ServerProcess } from "../harness/server/server-process.js";

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
const TSC = join(ROOT, "node_modules", "typescript", "bin", "tsc");
const PLATFORM = `${process.platform}-${process.arch}`;
const ZIG = process.env["COPPICE_ZIG"];

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
    const { stdout, stderr } = await run(program, parameters, { cwd });
    return { code: 0, text: stdout + stderr };
  } catch (error) {
    const { code, stdout, stderr } = error as Record<"code" | "stdout" | "stderr", string>;
    return { code, text: stdout + stderr };
  }
}

async function npm(cwd: string, ...parameters: readonly string[]): Promise<void> {
  await run("npm", [...parameters, "--offline", "--no-audit", "--no-fund", "--loglevel=error"], { cwd });
}

describe("the packages, packed and installed in an empty folder", { timeout: 400_000 }, () => {
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
    const [, settings = ""] = /```json\n(\{\s*"compilerOptions".*?)```/s.exec(manual) ?? [];
    const { compilerOptions } = JSON.parse(settings) as { readonly compilerOptions: object };
    // Declarations of every package are read, and none is trusted unread.
    const all = await installed();
    const entries = all.flatMap(({ name, exports = {} }) =>
      Object.entries(exports)
        .filter(([, target]) => typeof target !== "string")
        .map(([entry]) => join(name, entry)),
    );
    const imports = entries.map((entry, index) => `export * as e${index} from "${entry}";\n`);
    await writeFile(join(folder, "all.ts"), imports.join(""));
    const tsconfig = { compilerOptions: { ...compilerOptions, skipLibCheck: false }, exclude: [] };
    await writeFile(
      join(folder, "tsconfig.json"),
      JSON.stringify({ ...tsconfig, files: ["index.ts", "all.ts", "census.ts", "census.test.ts"] }),
    );
    const { code, text } = await outcomeOf(process.execPath, [TSC, "-p", "."], folder);
    assert.equal(code, 0, `tsc: ${text}`);
    await npm(folder, "pack");
    return join(folder, "acme-coppice-elsewhere-1.0.0.tgz");
  }

  async function installed(): Promise<readonly (Manifest & { readonly folder: string })[]> {
    const scope = join(home, "node_modules", "@coppice");
    const folders = [
      ...(await readdir(scope)).map((name) => join(scope, name)),
      join(scope, "..", "coppice"),
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
        (one) => /\.map$|\.test\.|(^|\/)src\/|tsbuildinfo$/.test(one) && !one.startsWith("node_modules/"),
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
