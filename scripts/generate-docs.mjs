// Writes the generated parts of docs/, each between its two marks. With --check: says which is stale.
//
// errors.md: the catalogue of reasons, with links to those that troubleshooting.md explains. measurements.md: the rows of measurements.json, which `npm run bench -- … --peer URL
// --record NAME` keeps. commands-v1.md: method, path and scopes of routes; their texts are those of the table that is there.
// Runs on the compiled code, under the Node that set-up chose.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { inspect } from "../core/dist/boot/boot.js";
import { configure } from "../core/dist/boot/configure.js";
import { configFromValues } from "../core/dist/config/read.js";
import { WIRE } from "../core/dist/http/messages/wire-errors.js";
import { REASONS } from "../core/dist/kernel/reasons.js";
import { createLogger } from "../core/dist/observe/logger.js";
import { markdownTable, writePart } from "./generated-file.mjs";
import { ROOT } from "./toolchain/project.mjs";

const REASONS_PART =
  /(?<=<!-- reasons: written by `npm run generate` -->\n\n)[^]*?(?=\n<!-- end of reasons -->)/;
const ROWS_PART = /(?<=<!-- rows: written by `npm run generate` -->\n\n)[^]*?(?=\n<!-- end of rows -->)/;
const ROUTES_PART =
  /(?<=<!-- routes: written by `npm run generate`, but for the texts -->\n\n)[^]*?(?=\n<!-- end of routes -->)/;
const BELOW = "/v1";

const pluginOf = async (name) => (await import(`../plugins/${name}/dist/index.js`)).default;

async function reasons() {
  const plugins = await Promise.all((await readdir(join(ROOT, "plugins"))).sort().map(pluginOf));
  const declared = [REASONS, ...plugins.map((plugin) => plugin.reasons)].flatMap(Object.values);
  const codes = Object.keys(WIRE);
  const more = await readFile(join(ROOT, "docs/troubleshooting.md"), "utf8");
  const named = (reason) =>
    more.includes(`\n### \`${reason}\`\n`)
      ? `[\`${reason}\`](troubleshooting.md#${reason})`
      : `\`${reason}\``;
  declared.sort((one, other) => codes.indexOf(one.code) - codes.indexOf(other.code));
  const rows = declared.map(({ reason, code, status, text }) => {
    const [when, remedy] = text.split(" | ");
    return [named(reason), `\`${code}\``, String(status ?? WIRE[code].status), when, remedy];
  });
  return markdownTable(["reason", "code", "HTTP", "when", "what to do"], rows);
}

const figure = (value, unit) =>
  `${value.toPrecision(3)} ${unit}`.replace(/^(\S+)e\+\d+/, () => value.toFixed(0));

async function measurements() {
  const recorded = JSON.parse(await readFile(join(ROOT, "docs/measurements.json"), "utf8"));
  const rows = recorded.map(({ row, backend, unit, here, peer, against, machine, date }) => {
    const figures = [figure(here, unit), figure(peer, unit), (here / peer).toFixed(2)];
    return [row, `\`${backend}\``, ...figures, against, machine, date];
  });
  const head = ["row", "backend", "here", "peer", "here / peer", "against", "machine", "date"];
  return markdownTable(head, rows);
}

async function served(names) {
  const plugins = await Promise.all(names.map(async (name) => [name, await pluginOf(name)]));
  const settings = Object.fromEntries(names.map((name) => [name, {}]));
  const config = configFromValues({ listeners: { api: { port: 3000 } }, plugins: settings });
  const configuration = await configure(config, new Map(plugins));
  let found = [];
  await inspect({ config, configuration, log: createLogger("silent") }, async ({ routes }) => {
    found = routes;
  });
  return found;
}

async function routes(before) {
  const texts = new Map(
    [...before.matchAll(/^\| (`.+?`) .*? \| ([^|]*?) *\|$/gm)].map(([, route, text]) => [route, text]),
  );
  const rows = (await served(["commands", "commands-v1"]))
    .filter((route) => route.plugin === "commands-v1")
    .map(({ method, path: pattern, scopes }) => {
      const route = `\`${method} ${pattern.replace(BELOW, "").replace(/:(\w+)/g, "{$1}")}\``;
      const text = texts.get(route);
      if (text === undefined) throw new Error(`docs/commands-v1.md has no text for ${route}: add its row`);
      return [route, scopes.map((scope) => `\`${scope}:sandbox\``).join(", "), text];
    });
  return markdownTable([`route below \`${BELOW}\``, "scopes", "does"], rows);
}

await writePart("docs/errors.md", REASONS_PART, reasons);
await writePart("docs/commands-v1.md", ROUTES_PART, routes);
await writePart("docs/measurements.md", ROWS_PART, measurements);
