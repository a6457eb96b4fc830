// Writes the table of routes into docs/commands-v1.md, between its two marks: method, path and scopes come from the code,
// the text of a route from the table that is there. With --check: says when it is stale.
// Runs on the compiled code, under the Node that set-up chose.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { inspect } from "../core/dist/boot/boot.js";
import { configure } from "../core/dist/boot/configure.js";
import { configFromValues } from "../core/dist/config/read.js";
import { createLogger } from "../core/dist/observe/logger.js";
import { writeGenerated } from "./generated-file.mjs";
import { markdownTable } from "./toolchain/markdown-table.mjs";
import { ROOT } from "./toolchain/project.mjs";

const FILE = "docs/commands-v1.md";
const BELOW = "/v1";
const BETWEEN =
  /(?<=<!-- routes: written by `npm run generate`, but for the texts -->\n\n)[^]*?(?=\n<!-- end of routes -->)/;

async function served(names) {
  const plugins = await Promise.all(
    names.map(async (name) => [name, (await import(`../plugins/${name}/dist/index.js`)).default]),
  );
  const settings = Object.fromEntries(names.map((name) => [name, {}]));
  const config = configFromValues({ listeners: { api: { port: 3000 } }, plugins: settings });
  const configuration = await configure(config, new Map(plugins));
  let found = [];
  await inspect({ config, configuration, log: createLogger("silent") }, async ({ routes }) => {
    found = routes;
  });
  return found;
}

const before = await readFile(join(ROOT, FILE), "utf8");
const [old = ""] = BETWEEN.exec(before) ?? [];
const texts = new Map(
  [...old.matchAll(/^\| (`.+?`) .*? \| ([^|]*?) *\|$/gm)].map(([, route, text]) => [route, text]),
);
const rows = (await served(["commands", "commands-v1"]))
  .filter((route) => route.plugin === "commands-v1")
  .map(({ method, path: pattern, scopes }) => {
    const route = `\`${method} ${pattern.replace(BELOW, "").replace(/:(\w+)/g, "{$1}")}\``;
    const text = texts.get(route);
    if (text === undefined) throw new Error(`${FILE} has no text for ${route}: add its row`);
    return [route, scopes.map((scope) => `\`${scope}:sandbox\``).join(", "), text];
  });
const table = markdownTable([`route below \`${BELOW}\``, "scopes", "does"], rows);
await writeGenerated(
  FILE,
  before.replace(BETWEEN, () => table),
);
