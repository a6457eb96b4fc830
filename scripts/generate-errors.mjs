// Writes the catalogue of reasons into docs/errors.md, between its two marks. With --check: says when it is stale.
// Runs on the compiled code, under the Node that set-up chose.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { WIRE } from "../core/dist/http/messages/wire-errors.js";
import { REASONS } from "../core/dist/kernel/reasons.js";
import { writeGenerated } from "./generated-file.mjs";
import { markdownTable } from "./toolchain/markdown-table.mjs";
import { ROOT } from "./toolchain/project.mjs";

const FILE = "docs/errors.md";
const BETWEEN = /(?<=<!-- reasons: written by `npm run generate` -->\n\n)[^]*?(?=\n<!-- end of reasons -->)/;

const rows = Object.entries(REASONS).map(([reason, { code, status, text }]) => {
  const [when, remedy] = text.split(" | ");
  return [`\`${reason}\``, `\`${code}\``, String(status ?? WIRE[code].status), when, remedy];
});
const table = markdownTable(["reason", "code", "HTTP", "when", "what to do"], rows);

const before = await readFile(join(ROOT, FILE), "utf8");
await writeGenerated(
  FILE,
  before.replace(BETWEEN, () => table),
);
