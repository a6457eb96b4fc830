import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ROOT } from "./toolchain/project.mjs";

/** Writes a generated file; with --check reports one that is stale. @param path from the root of the project. */
export async function writeGenerated(path, text) {
  const file = join(ROOT, path);
  if (!process.argv.includes("--check")) return writeFile(file, text);
  if ((await readFile(file, "utf8").catch(() => "")) === text) return;
  console.error(`${path} is stale`);
  process.exitCode = 1;
}

/** Replaces a part of a file by the text that `textOf` makes of it. */
export async function writePart(file, part, textOf) {
  const before = await readFile(join(ROOT, file), "utf8");
  const text = await textOf(part.exec(before)?.[0] ?? "");
  await writeGenerated(
    file,
    before.replace(part, () => text),
  );
}

/** A table in Markdown, as the formatter writes it. */
export function markdownTable(head, rows) {
  const table = [head, [], ...rows];
  const widths = head.map((_, column) => Math.max(...table.map((row) => (row[column] ?? "").length)));
  const lines = table.map((row) => {
    const cells = widths.map((width, column) => row[column]?.padEnd(width) ?? "-".repeat(width));
    return `| ${cells.join(" | ")} |\n`;
  });
  return lines.join("");
}
