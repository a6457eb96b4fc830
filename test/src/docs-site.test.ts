import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { appendFile, mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

interface Check {
  readonly faultsIn: (html: string) => Promise<readonly string[]>;
}

describe("the site of the documentation", () => {
  let folder = "";
  let html = "";
  const built = (name: string) => readFile(join(html, name), "utf8");

  before(async () => {
    // Below the root: the pages import Vue.
    folder = await mkdtemp(join(ROOT, ".toolchain", "site-"));
    html = join(folder, "html");
    const program = join(ROOT, "scripts/docs-site.mjs");
    await promisify(execFile)(process.execPath, [program, "--to", folder]).catch(
      (error: { readonly stdout: string; readonly stderr: string }) =>
        assert.fail(error.stdout + error.stderr),
    );
  });
  after(() => rm(folder, { recursive: true, force: true }));

  it("has each page, its Markdown beside it, and its line in llms.txt", async () => {
    const index = await built("llms.txt");
    const docs = (await readdir(join(ROOT, "docs"), { recursive: true })).filter((name) =>
      name.endsWith(".md"),
    );
    const generated = ["settings.md", "api-core.md", "api-core-testing.md", "api-conformance.md"];
    const pages = ["README.md", "CHANGELOG.md", ...[...docs, ...generated].map((name) => `docs/${name}`)];
    assert.ok(pages.length > 60, `${pages.length} pages`);
    for (const page of pages) {
      const title = /^# (.*)$/m.exec(await built(page))?.[1]?.replace(/`/g, "") ?? "";
      assert.notEqual(title, "", page);
      const text = await built(page.replace(/\.md$/, ".html"));
      assert.match(text, /<h1 /, page);
      assert.ok(text.includes(`type="text/markdown" href="/${page}"`), page);
      assert.ok(index.includes(`[${title}](/${page})`), page);
    }
  });

  it("has every setting of the schema, and every export of core with its comment", async () => {
    const settings = await built("docs/settings.md");
    const schema = await readFile(join(ROOT, "config/schema.json"), "utf8");
    for (const [, description = ""] of schema.matchAll(/"description": "((?:[^"\\]|\\.)*)"/g)) {
      const text = JSON.parse(`"${description}"`) as string;
      assert.ok(settings.includes(text.replaceAll("|", "\\|")), text);
    }
    assert.match(settings, /^\| `http\.headersTimeout` +\| string +\| `30s` +\| time a client has/m);

    const api = await built("docs/api-core.md");
    const report = await readFile(join(ROOT, "core/core.api.md"), "utf8");
    for (const [, name = ""] of report.matchAll(/^export (?:abstract )?(?:class|function|interface) (\w+)/gm))
      assert.match(api, new RegExp(`^## ${name}\n\n(?!\`\`\`)`, "m"));
  });

  it("loads nothing from other hosts, and a browser may not", async () => {
    for (const name of ["index.html", "docs/install.html", "docs/settings.html"]) {
      const text = await built(name);
      const [, policy = ""] =
        /<meta http-equiv="Content-Security-Policy" content="([^"]*)">/.exec(text) ?? [];
      assert.match(policy, /^default-src 'self';/, name);
      assert.doesNotMatch(policy, /https?:|\*/, name);
    }
  });

  it("is refused for a link that leads nowhere, and for what a page would load from elsewhere", async () => {
    const path = pathToFileURL(join(ROOT, "scripts/docs-faults.mjs")).href;
    const { faultsIn } = (await import(path)) as Check;
    assert.deepEqual(await faultsIn(html), []);
    await appendFile(join(html, "docs/limits.html"), '<a href="./gone.html">');
    await appendFile(join(html, "docs/limits.html"), '<a href="./install.html#gone">');
    await appendFile(join(html, "docs/linux.html"), '<script src="https://elsewhere.example/x.js">');
    await appendFile(join(html, "404.html"), '<a href="docs/install.html#on-debian">');
    assert.deepEqual([...(await faultsIn(html))].sort(), [
      "docs/limits.html: ./gone.html is not there",
      "docs/limits.html: ./install.html#gone names a part that is not there",
      "docs/linux.html loads from another host",
    ]);
  });
});
