// Writes the rows of docs/measurements.json, which `npm run bench -- … --peer URL --record NAME` keeps, into the table
// of docs/measurements.md. With --check: says when it is stale.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { writeGenerated } from "./generated-file.mjs";
import { markdownTable } from "./toolchain/markdown-table.mjs";
import { ROOT } from "./toolchain/project.mjs";

const FILE = "docs/measurements.md";
const BETWEEN = /(?<=<!-- rows: written by `npm run generate` -->\n\n)[^]*?(?=\n<!-- end of rows -->)/;
const HEAD = ["row", "backend", "here", "peer", "here / peer", "against", "machine", "date"];

const figure = (value, unit) =>
  `${value.toPrecision(3)} ${unit}`.replace(/^(\S+)e\+\d+/, () => value.toFixed(0));
const recorded = JSON.parse(await readFile(join(ROOT, "docs/measurements.json"), "utf8"));
const rows = recorded.map(({ row, backend, unit, here, peer, against, machine, date }) => [
  row,
  `\`${backend}\``,
  figure(here, unit),
  figure(peer, unit),
  (here / peer).toFixed(2),
  against,
  machine,
  date,
]);

const before = await readFile(join(ROOT, FILE), "utf8");
const table = markdownTable(HEAD, rows);
await writeGenerated(
  FILE,
  before.replace(BETWEEN, () => table),
);
