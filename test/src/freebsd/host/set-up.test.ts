import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { appendFile, cp, mkdtemp, open, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { asFreebsd } from "../../harness/freebsd/as-freebsd.js";

const run = promisify(execFile);

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
/** Files that set-up reads before the first build. */
const SOURCES = ["package.json", "package-lock.json", ".npmrc", "scripts", "agent/native"];
const TIMEOUT_MS = 480_000;
const ELF_OSABI_FREEBSD = 9;
/** FreeBSD's C library, in a file whose linker left the system out of the header. */
const LIBC_FREEBSD = "\0libc.so.7\0";
/** Starts of files that Windows and macOS run. */
const OTHER_PROGRAMS = ["4d5a9000", "cffaedfe", "cefaedfe", "cafebabe"];

/** Names of most of the files that are installed, which are no programs. */
const TEXT = /\.([cm]?[jt]sx?|json|map|md|ya?ml)$/;

/** Paths of programs and libraries for another system than FreeBSD. */
async function programsOfOthers(directory: string): Promise<readonly string[]> {
  const found: string[] = [];
  for (const entry of await readdir(directory, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || TEXT.test(entry.name)) continue;
    const path = join(entry.parentPath, entry.name);
    const file = await open(path);
    const { buffer } = await file.read(Buffer.alloc(8), 0, 8, 0);
    await file.close();
    const start = buffer.toString("hex", 0, 4);
    const isElf = start === "7f454c46";
    const isOurs = async () =>
      buffer[7] === ELF_OSABI_FREEBSD || (await readFile(path)).includes(LIBC_FREEBSD);
    if (isElf ? !(await isOurs()) : OTHER_PROGRAMS.includes(start)) found.push(path);
  }
  return found;
}

describe("set-up on FreeBSD, as far as another system shows it", { timeout: TIMEOUT_MS }, () => {
  let tree: string;
  let preload: string;

  before(async () => {
    tree = await mkdtemp(join(tmpdir(), "coppice-set-up-"));
    ({ preload } = await asFreebsd(tree));
    const { workspaces } = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8"));
    const folders = (workspaces as string[]).filter((name) => !name.includes("*"));
    const plugins = (await readdir(join(ROOT, "plugins"))).map((name) => `plugins/${name}`);
    const packages = [...folders, ...plugins].map((folder) => `${folder}/package.json`);
    for (const name of [...SOURCES, ...packages]) {
      await cp(join(ROOT, name), join(tree, name), { recursive: true });
    }
    // A compiler that warns about the agent, as one newer than ours may.
    await appendFile(join(tree, "agent/native/main.c"), "static int unused(void) { return 0; }\n");
  });
  after(() => rm(tree, { recursive: true, force: true }));

  for (const cpu of ["x64", "arm64"]) {
    it(`needs no install script and no Python on ${cpu}, and brings the compiler but no binary of another system`, async () => {
      const script = `import { prepare } from ${JSON.stringify(join(tree, "scripts/toolchain/prepare.mjs"))};
        const { environment } = await prepare();
        console.log(JSON.stringify({ python: environment.COPPICE_PYTHON }));`;
      // Only CI takes a warning for an error.
      const { COPPICE_PYTHON: _, CI: __, ...environment } = process.env;
      const modules = join(tree, "node_modules");
      await rm(modules, { recursive: true, force: true });
      const { stdout } = await run(
        process.execPath,
        ["--import", preload, "--input-type=module", "-e", script],
        // npm's own switches for another system than its own.
        { env: { ...environment, npm_config_os: "freebsd", npm_config_cpu: cpu }, timeout: TIMEOUT_MS },
      );
      assert.match(stdout, /^\{\}$/m);
      const compilers = await readdir(join(modules, "@typescript"));
      assert.deepEqual(
        compilers.filter((name) => name.startsWith("typescript-")),
        [`typescript-freebsd-${cpu}`],
      );
      assert.deepEqual(await programsOfOthers(modules), []);
      // Its types are needed to compile.
      assert.ok((await readdir(join(modules, "zeromq"))).includes("package.json"));
      const agent = await readdir(join(tree, ".toolchain/agent"));
      assert.ok(agent.includes("current"), agent.join(" "));
    });
  }

  it("says which tools FreeBSD does not have", async () => {
    for (const [verb, tool] of [
      ["format", "the formatter"],
      ["generate", "buf"],
    ] as const) {
      const ended = run(process.execPath, ["--import", preload, join(tree, "scripts/run.mjs"), verb]);
      await assert.rejects(ended, (error: Error & { readonly stderr: string }) => {
        assert.match(error.stderr, new RegExp(`^coppice: ${tool} has no binary for FreeBSD on arm64`, "m"));
        return true;
      });
    }
    const { packages } = JSON.parse(await readFile(join(ROOT, "package-lock.json"), "utf8"));
    assert.deepEqual(packages["node_modules/@oxfmt/binding-freebsd-x64"].os, ["freebsd"]);
    assert.equal(packages["node_modules/@oxfmt/binding-freebsd-arm64"], undefined);
  });

  it("checks nothing by tools that FreeBSD does not have, and installs no packages of Debian", async () => {
    const module = (name: string) => JSON.stringify(join(tree, "scripts/toolchain", name));
    const script = `import { lint } from ${module("lint.mjs")};
      import { ensureTestPackages } from ${module("debian-packages.mjs")};
      import { ensureStartPackages } from ${module("apt.mjs")};
      await lint({});
      await ensureTestPackages();
      await ensureStartPackages();`;
    // Nothing can be started: neither a linter nor apt-get.
    const as = ["--import", preload, "--input-type=module", "-e", script];
    const { stdout } = await run(process.execPath, as, { env: { PATH: "/nonexistent", CI: "true" } });
    assert.equal(stdout, "Nothing is checked: the linter's rules about types have no binary for FreeBSD.\n");
  });

  it("refuses backends of other systems by name", async () => {
    const config = join(tree, "linux.yaml");
    const plugins = { "linux-namespaces": { directory: join(tree, "namespaces") } };
    const listeners = { api: { host: "127.0.0.1", port: 0 } };
    await writeFile(config, JSON.stringify({ listeners, dataDir: join(tree, "data"), plugins }));
    const program = join(ROOT, "core/bin/coppice.mjs");
    const ended = run(process.execPath, ["--import", preload, program, "doctor", config]);
    await assert.rejects(ended, (error: Error & { readonly stdout: string }) =>
      /it needs Linux/.test(error.stdout),
    );
  });

  it("says what to install where npm is missing, or Node is old", async () => {
    const missing = pathToFileURL(join(ROOT, "scripts/toolchain/project.mjs")).href;
    const script = `import { NPM_MISSING } from "${missing}"; console.log(NPM_MISSING);`;
    const as = ["--import", preload, "--input-type=module", "-e"];
    const { stdout } = await run(process.execPath, [...as, script], { cwd: dirname(tree) });
    assert.match(stdout, /pkg install npm-node24/);
    const old = `Object.defineProperty(process, "version", { value: "v20.19.4" });
      process.argv[2] = "setup";
      await import("${pathToFileURL(join(tree, "scripts/run.mjs")).href}");`;
    // It fetches nothing: npm has no Node for FreeBSD.
    const ended = run(process.execPath, [...as, old, "run"], { cwd: tree, env: { PATH: "/nonexistent" } });
    await assert.rejects(ended, (error: Error & { readonly stderr: string }) => {
      assert.equal(
        error.stderr,
        "coppice: Node v20.19.4 is older than 22.22.0: install a newer one with `pkg install node24 npm-node24`.\n",
      );
      return true;
    });
  });
});
