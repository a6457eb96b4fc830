import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

function text(path: string): Promise<string> {
  return readFile(join(ROOT, path), "utf8");
}

async function pages(): Promise<readonly string[]> {
  const docs = (await readdir(join(ROOT, "docs"), { recursive: true })).map((name) => join("docs", name));
  const root = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
  return [...root, ...docs.filter((name) => name.endsWith(".md"))];
}

/** The source text of core and of all plugins, tests left out. */
async function sources(): Promise<string> {
  const folders = ["core", ...(await readdir(join(ROOT, "plugins"))).map((name) => `plugins/${name}`)];
  const texts = await Promise.all(
    folders.map(async (folder) => {
      const files = await readdir(join(ROOT, folder, "src"), { recursive: true });
      const code = files.filter((name) => name.endsWith(".ts") && !name.endsWith(".test.ts"));
      return Promise.all(code.map((name) => text(join(folder, "src", name))));
    }),
  );
  return texts.flat().join("\n");
}

describe("comments", () => {
  it("stand one above the other nowhere", async () => {
    assert.deepEqual((await sources()).match(/\*\/\n\s*\/\*\*.*/g) ?? [], []);
  });

  it("say what each function, class and type of the public packages is", async () => {
    for (const report of ["core/core.api.md", "core/core-testing.api.md", "conformance/conformance.api.md"]) {
      const bare = (await text(report)).match(
        /(?<=@public \(undocumented\)\n)export (?:abstract )?(?:class|function|interface|type).*/g,
      );
      assert.deepEqual(bare ?? [], [], report);
    }
  });
});

describe("the documentation", () => {
  it("links to files that are there", async () => {
    const broken: string[] = [];
    for (const page of await pages()) {
      for (const [, target = ""] of (await text(page)).matchAll(/\]\(([^)\s]+)\)/g)) {
        if (/^[a-z]+:/.test(target)) continue;
        const path = resolve(ROOT, dirname(page), target.replace(/#.*$/, ""));
        if (!existsSync(path)) broken.push(`${page}: ${target}`);
      }
    }
    assert.deepEqual(broken, []);
  });

  it("calls npx so that the options are the command's", async () => {
    const wrong: string[] = [];
    const config = (await readdir(join(ROOT, "config"), { withFileTypes: true })).filter((it) => it.isFile());
    for (const page of [...(await pages()), ...config.map(({ name }) => join("config", name))]) {
      // Without `--`, npx takes `--help` and `--version` for itself.
      if (/npx --no (?!-- )/.test(await text(page))) wrong.push(page);
    }
    assert.deepEqual(wrong, []);
  });

  it("names source files that are there", async () => {
    const missing: string[] = [];
    for (const page of await pages()) {
      const names = (await text(page)).matchAll(
        /`((?:core|conformance|agent|bench|plugins|test|config|scripts|examples)\/[\w./-]+\.\w+)`/g,
      );
      for (const [, name = ""] of names) if (!existsSync(join(ROOT, name))) missing.push(`${page}: ${name}`);
    }
    assert.deepEqual(missing, []);
  });

  it("names tests of FreeBSD that are there, and one for each finding of the reading", async () => {
    const folders = ["test/src", "agent/src", "plugins/jail-freebsd/src"];
    const named = folders.map(async (folder) => {
      const names = await readdir(join(ROOT, folder), { recursive: true });
      return names.map((name) => `/${folder}/${name}`);
    });
    const files = (await Promise.all(named)).flat().filter((name) => name.endsWith(".test.ts"));
    const [, table = ""] = /^\| tried .*\n((?:\|.*\n)+)/m.exec(await text("docs/freebsd.md")) ?? [];
    const rows = [...table.matchAll(/^\| (.*[^ ]) +\| (.*`) +\|$/gm)].map(([, tried = "", tests = ""]) => ({
      tried,
      tests,
    }));
    assert.ok(rows.length > 25, `${rows.length} rows`);
    const names = rows.flatMap(({ tests }) => [...tests.matchAll(/`([^`]+)`/g)].map(([, name = ""]) => name));
    const isThere = (name: string) =>
      files.some((file) => file.endsWith(`/${name.replace(/\.test\.ts$/, "")}.test.ts`));
    assert.deepEqual(
      names.filter((name) => !isThere(name)),
      [],
    );
    const findings = Array.from({ length: 13 }, (_, index) => `F${index + 1}`);
    const isTried = (finding: string) => rows.some(({ tried }) => new RegExp(`\\b${finding}\\b`).test(tried));
    assert.deepEqual(
      findings.filter((finding) => !isTried(finding)),
      [],
    );
  });

  it("has a test for every feature that it says works", async () => {
    const bare: string[] = [];
    const pages = await Promise.all(["docs/compatibility.md", "docs/limits.md"].map(text));
    for (const [row = ""] of pages.join("\n").matchAll(/^\|.*\|$/gm)) {
      const cells = row
        .split("|")
        .slice(1, -1)
        .map((cell) => cell.trim());
      const isHead = cells.includes("shown by") || cells.every((cell) => /^-+$/.test(cell));
      // A row of a missing feature needs no test.
      if (isHead || /^(row$|no\b)/.test(cells.at(cells.length - 2) ?? "")) continue;
      if (!/`[\w./-]+\.ts`/.test(cells.at(-1) ?? "")) bare.push(row);
    }
    assert.deepEqual(bare, []);
  });

  it("names a test for every row of the contract, by its title, and every test of a row", async () => {
    const page = await text("docs/compatibility.md");
    const [, section = ""] = page.split("## The contract, row by row");
    const listed = new Set<string>();
    const missing: string[] = [];
    const rows = [...section.matchAll(/^\| ((?:0\.1|[A-ET]).*?) +\| `([\w./-]+)`(?:: (.*?))? +\|$/gm)];
    assert.ok(rows.length > 100, `${rows.length} rows`);
    for (const [, row = "", file = "", title = row] of rows) {
      listed.add(row);
      if (!(await text(file)).includes(`"${title}"`)) missing.push(`${file}: ${title}`);
    }
    const folder = "test/src/e2e/contract";
    for (const name of await readdir(join(ROOT, folder))) {
      if (!name.startsWith("contract-")) continue;
      const titles = (await text(join(folder, name))).matchAll(/"((?:0\.1-\d+|[A-E]\.\d+(?:-\d)?) [^"]+)"/g);
      for (const [, title = ""] of titles) if (!listed.has(title)) missing.push(`the page: ${title}`);
    }
    const python = `${folder}/python-code-contract.py`;
    const inPython = await text(python);
    for (const [, title = ""] of (await text(`${folder}/contract-code.test.ts`)).matchAll(/"(E\.\d[^"]+)"/g))
      if (!inPython.includes(`@row("${title}")`)) missing.push(`${python}: ${title}`);
    assert.deepEqual(missing, []);
  });

  it("names every metric, and none that is not there", async () => {
    const code = await sources();
    const page = await text("docs/reference.md");
    const inCode = new Set([...code.matchAll(/name: "(coppice_[a-z_]+)"/g)].map(([, name = ""]) => name));
    const inPage = new Set<string>();
    let last = "";
    for (const [, name = ""] of page.matchAll(/`((?:coppice|…)_[a-z_]+)(?:\{[a-z,]*\})?`/g)) {
      // `…_total` after `coppice_a_b_total` stands for the name that shares its beginning.
      const full = name.startsWith("…")
        ? ([...inCode].find((known) => known.endsWith(name.slice(1)) && known.startsWith(last)) ?? name)
        : name;
      if (!name.startsWith("…")) last = /^coppice_[a-z]+/.exec(name)?.[0] ?? "";
      inPage.add(full);
    }
    assert.deepEqual([...inPage].sort(), [...inCode].sort());
  });

  it("gives every error code the status that the table in the code gives it", async () => {
    const code = await text("core/src/http/messages/wire-errors.ts");
    const table = new Map(
      [...code.matchAll(/^ {2}(\w+): \{ status: (\d+),/gm)].map(([, name, status]) => [name, status]),
    );
    assert.equal(table.size, 16);
    const page = await text("docs/errors.md");
    for (const [, names = "", status] of page.matchAll(/^\| (`\w+`(?:, `\w+`)*) +\| (\d{3}) +\|/gm)) {
      for (const [, name] of names.matchAll(/`(\w+)`/g)) {
        assert.equal(table.get(name), status, name);
        table.delete(name);
      }
    }
    assert.deepEqual([...table.keys()], [], "codes that docs/errors.md leaves out");
  });

  it("explains reasons that there are, each where the catalogue links to it", async () => {
    const explained = [...(await text("docs/troubleshooting.md")).matchAll(/^### `(\w+)`$/gm)];
    assert.ok(explained.length > 10, `${explained.length} reasons`);
    const catalogue = await text("docs/errors.md");
    for (const [, reason = ""] of explained)
      assert.ok(catalogue.includes(`| [\`${reason}\`](troubleshooting.md#${reason})`), reason);
  });

  it("shows a plugin that works, with a test that passes", async (context) => {
    const folder = await mkdtemp(join(tmpdir(), "coppice-docs-"));
    context.after(() => rm(folder, { recursive: true, force: true }));
    const blocks = [...(await text("docs/writing-a-plugin.md")).matchAll(/```ts\n(.*?)```/gs)].map(
      ([, code = ""]) => code,
    );
    const plugin = blocks.find((code) => code.includes('name: "census"'));
    const test = blocks.find((code) => code.includes("node:test"));
    assert.ok(plugin !== undefined && test !== undefined);
    await symlink(join(ROOT, "node_modules"), join(folder, "node_modules"));
    await writeFile(join(folder, "package.json"), '{ "type": "module" }');
    await writeFile(join(folder, "census.ts"), plugin);
    await writeFile(join(folder, "census.test.ts"), test.replace("./census.js", "./census.ts"));
    // Node strips the types. Without this variable the inner test runner does not report to the outer one.
    const env = { ...process.env, NODE_TEST_CONTEXT: undefined };
    await promisify(execFile)(process.execPath, ["--test", "census.test.ts"], { cwd: folder, env }).catch(
      (error: { readonly stdout: string }) => assert.fail(error.stdout),
    );
  });
});
