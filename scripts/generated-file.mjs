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
