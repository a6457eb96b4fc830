// Writes the catalogue of reasons into docs/errors.md, between its two marks. With --check: says when it is stale.
// Runs on the compiled code, under the Node that set-up chose.
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { WIRE } from "../core/dist/http/messages/wire-errors.js";
import { REASONS } from "../core/dist/kernel/reasons.js";
import { markdownTable } from "./toolchain/markdown-table.mjs";
import { ROOT } from "./toolchain/project.mjs";

const FILE = "docs/errors.md";
const BETWEEN = /(?<=<!-- reasons: written by `npm run generate` -->\n\n)[^]*?(?=\n<!-- end of reasons -->)/;

const rows = Object.entries(REASONS).map(([reason, { code, status, text }]) => {
  const [when, remedy] = text.split(" | ");
  return [`\`${reason}\``, `\`${code}\``, String(status ?? WIRE[code].status), when, remedy];
});
const table = markdownTable(["reason", "code", "HTTP", "when", "what to do"], rows);

const path = join(ROOT, FILE);
const before = await readFile(path, "utf8");
const after = before.replace(BETWEEN, () => table);
if (!process.argv.includes("--check")) {
  await writeFile(path, after);
} else if (after !== before) {
  console.error(`${FILE} is stale`);
  process.exitCode = 1;
}
