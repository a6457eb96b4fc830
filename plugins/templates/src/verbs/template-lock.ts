import { writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import { ARCHITECTURE } from "../images/host-programs.js";
import { differencesOf, formatLock } from "../model/contents-lock.js";
import { lockOf, readLock } from "../recipes/recipe.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { contentsOf } from "./find-template.js";

/** Writes the packages that recipes were built to into the lock files beside them, or compares both. */
export const templateLock: VerbAction<TemplatesConfig> = {
  usage: "[name of a recipe…] [--check]",
  async run({ args, config, dataDir, print }) {
    const { positionals, values } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: { check: { type: "boolean", default: false } },
    });
    const inFiles = Object.entries(config.recipes).filter(([, recipe]) => typeof recipe === "string");
    const names = positionals.length > 0 ? positionals : inFiles.map(([name]) => name);
    let differs = false;
    using store = new TemplatesStore(dataDir());
    for (const name of new Set(names)) {
      const path = pathOf(config, name);
      const contents = contentsOf(store, name);
      if (!values.check) {
        await writeFile(path, formatLock({ architecture: ARCHITECTURE, contents }));
        print(`${path}: ${contents.length} packages`);
        continue;
      }
      const lines = await compare(path, contents);
      differs ||= lines.length > 0;
      print(`${path}: ${lines.length === 0 ? "the same" : `${lines.length} differences`}`);
      for (const line of lines) print(line);
    }
    return differs ? 1 : 0;
  },
};

/** @throws SandboxError for a recipe that is in no file */
function pathOf({ recipes }: Pick<TemplatesConfig, "recipes">, name: string): string {
  const recipe = Object.hasOwn(recipes, name) ? recipes[name] : undefined;
  if (typeof recipe === "string") return lockOf(recipe);
  const text =
    recipe === undefined
      ? "templates.recipes has none of that name"
      : "it is in the configuration, not in a file";
  throw new SandboxError("usage_invalid", `recipe '${name}' cannot be locked: ${text}`);
}

async function compare(path: string, contents: readonly string[]): Promise<readonly string[]> {
  const lock = await readLock(path);
  if (lock === undefined)
    throw new SandboxError("template_unusable", `there is no ${path}: lock without --check writes it`);
  if (lock.architecture !== ARCHITECTURE) {
    const text = `${path} is of ${lock.architecture}, and this host ${ARCHITECTURE}`;
    throw new SandboxError("template_unusable", text);
  }
  return differencesOf(lock.contents, contents);
}
