// Writes the catalogue of reasons into docs/errors.md, between its two marks. With --check: says when it is stale.
// Runs on the compiled code, under the Node that set-up chose.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { WIRE } from "../core/dist/http/messages/wire-errors.js";
import { REASONS } from "../core/dist/kernel/reasons.js";
import { writeGenerated } from "./generated-file.mjs";
import { markdownTable } from "./toolchain/markdown-table.mjs";
import { ROOT } from "./toolchain/project.mjs";

const FILE = "docs/errors.md";
const BETWEEN = /(?<=<!-- reasons: written by `npm run generate` -->\n\n)[^]*?(?=\n<!-- end of reasons -->)/;

const names = (await readdir(join(ROOT, "plugins"))).sort();
const plugins = await Promise.all(names.map((name) => import(`../plugins/${name}/dist/index.js`)));
const declared = [REASONS, ...plugins.map((module) => module.default.reasons)].flatMap(Object.values);
const codes = Object.keys(WIRE);
declared.sort((one, other) => codes.indexOf(one.code) - codes.indexOf(other.code));

const rows = declared.map(({ reason, code, status, text }) => {
  const [when, remedy] = text.split(" | ");
  return [`\`${reason}\``, `\`${code}\``, String(status ?? WIRE[code].status), when, remedy];
});
const table = markdownTable(["reason", "code", "HTTP", "when", "what to do"], rows);

const before = await readFile(join(ROOT, FILE), "utf8");
await writeGenerated(
  FILE,
  before.replace(BETWEEN, () => table),
);
