import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** The root of the repository. */
export const ROOT = fileURLToPath(new URL("../..", import.meta.url)).replace(/\/$/, "");

/** Downloads of set-up beside node_modules. Never committed; safe to delete. */
export const TOOLCHAIN = join(ROOT, ".toolchain");

/** The workspaces, as paths from the root. */
export async function workspaces() {
  const plugins = await readdir(join(ROOT, "plugins"));
  return [
    "core",
    "cli",
    "conformance",
    "agent",
    ...plugins.sort().map((name) => `plugins/${name}`),
    "test",
    "bench",
    "coppice",
    "create-coppice-plugin",
  ];
}

/** A prerequisite that set-up cannot fetch. Its message is one sentence: what is missing, and how to get it. */
export class MissingPrerequisite extends Error {
  name = "MissingPrerequisite";
}

const NPM = process.platform === "freebsd" ? "pkg install npm-node24" : "apt-get install npm";
export const NPM_MISSING = `npm is missing: install it with \`${NPM}\`, or with Node itself.`;
