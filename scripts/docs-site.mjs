// Builds the documentation as a site: `npm run docs -- [--to FOLDER] [--serve]`. The pages keep the paths that they have
// in the repository, so a link works in both. Beside each page is its Markdown, and `llms.txt` names them all. A link
// that leads nowhere, and an address of another host that a page would load, fail the build.
//
// Runs under the Node that set-up chose.
import { cp, mkdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join, normalize, resolve } from "node:path";
import { parseArgs } from "node:util";
import { build, serve } from "vitepress";
import { groupsOf, titleOf } from "../docs/.vitepress/config.mjs";
import { faultsIn, filesIn } from "./docs-faults.mjs";
import { apiPages, settingsPage } from "./docs-pages.mjs";
import { ROOT, TOOLCHAIN } from "./toolchain/project.mjs";

const PROJECT_PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"];
/** Files that pages link to, of kinds that VitePress takes for pages. */
process.env.VITE_EXTRA_EXTENSIONS = "py,rc,rules,sh";
const CONFIG = join(ROOT, "docs/.vitepress/config.mjs");

async function write(path, text) {
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, text);
}

/** Puts the pages together, with the files of the repository that they link to. */
async function collect(folder) {
  const docs = (await filesIn(join(ROOT, "docs"))).filter((name) => /^[^.].*\.md$/.test(name));
  const names = [...PROJECT_PAGES, ...docs.map((name) => `docs/${name}`)];
  const pages = new Map();
  for (const name of names)
    pages.set(name, (await readFile(join(ROOT, name), "utf8")).replace(/^<!--.*-->\n+/gm, ""));
  pages.set("docs/settings.md", await settingsPage());
  for (const [name, text] of await apiPages(join(dirname(folder), "model")))
    pages.set(`docs/${name}.md`, text);
  for (const [name, text] of pages) {
    await write(join(folder, name), text);
    // What is public is served as it is.
    await write(join(folder, "public", name), text);
    for (const [, target] of text.matchAll(/\]\(([^):#\s]+)[^)\s]*\)/g)) {
      const path = normalize(join(dirname(name), target));
      const isFile = await stat(join(ROOT, path)).then(
        (it) => it.isFile(),
        () => false,
      );
      if (!path.startsWith("..") && isFile && !pages.has(path))
        await cp(join(ROOT, path), join(folder, "public", path));
    }
  }
  return pages;
}

const HOME = `---
layout: home
hero:
  name: Coppice
  text: Sandboxes for AI agents on your own machine
  tagline: Programs written for E2B's SDKs run unmodified, and nearly every part is a plugin.
  actions:
    - { theme: brand, text: First sandbox, link: /docs/first-sandbox }
    - { theme: alt, text: Install, link: /docs/install }
---
`;

/** The first sentence of a page, without the marks of links and code. */
function summaryOf(text) {
  const paragraphs = text
    .split(/\n{2,}/)
    .filter((each) => /^[\w`[*]/.test(each) && !/^(?:Status|Date):/.test(each));
  return (paragraphs[0] ?? "")
    .replace(/\[([^\]]+)\]\([^)]*\)/g, "$1")
    .replace(/^\*\*\w+\.\*\*/, "")
    .replace(/\s+/g, " ")
    .trim()
    .replace(/(?<=\.) .*|:$/, "");
}

function index(groups, pages) {
  const sections = groups.map(([group, names]) => {
    const lines = names.map((name) => {
      const text = pages.get(name);
      return `- [${titleOf(text)}](/${name}): ${summaryOf(text)}\n`;
    });
    return `\n## ${group}\n\n${lines.join("")}`;
  });
  return `# Coppice\n\n> A self-hosted sandbox server for AI agents that answers the unmodified E2B SDKs.\n${sections.join("")}`;
}

const { values } = parseArgs({ options: { to: { type: "string" }, serve: { type: "boolean" } } });
const to = resolve(values.to ?? join(TOOLCHAIN, "site"));
const folder = join(to, "pages");
await rm(to, { recursive: true, force: true });
const pages = await collect(folder);
await write(join(folder, "index.md"), HOME);
await write(join(folder, "public/llms.txt"), index(groupsOf(folder), pages));
const config = `import { siteOf } from ${JSON.stringify(CONFIG)};\nexport default siteOf(${JSON.stringify(folder)});\n`;
await write(join(folder, ".vitepress/config.mjs"), config);
await build(folder);
const faults = await faultsIn(join(to, "html"));
for (const fault of faults) console.error(`docs: ${fault}`);
if (faults.length > 0) process.exitCode = 1;
else console.log(`The site: ${join(to, "html")}`);
if (values.serve) await serve({ root: folder });
