import { writeFile } from "node:fs/promises";
import { SandboxError, type VerbAction } from "@coppice/core";
import { ARCHITECTURE } from "../images/host-programs.js";
import { differencesOf, formatLock } from "../model/contents-lock.js";
import { lockOf, readLock } from "../recipes/recipe.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { contentsOf } from "./find-template.js";

/** Writes the packages that recipes were built to into the lock files beside them, or compares both. */
export const templateLock: VerbAction<TemplatesConfig> = (command, { config, dataDir, print, exit }) =>
  command
    .description("writes the packages that recipes were built to into the lock files beside them")
    .argument("[name...]", "of recipes; all that are in files without one")
    .option("--check", "compares both instead; exit code 1 for a difference")
    .addHelpText("after", "\nExample:\n  coppice template lock coppice.yaml base --check")
    .action(async (positionals, { check }) => {
      const inFiles = Object.entries(config.recipes).filter(([, recipe]) => typeof recipe === "string");
      const names = positionals.length > 0 ? positionals : inFiles.map(([name]) => name);
      let differs = false;
      using store = new TemplatesStore(dataDir());
      for (const name of new Set(names)) {
        const path = pathOf(config, name);
        const contents = contentsOf(store, name);
        if (!check) {
          await writeFile(path, formatLock({ architecture: ARCHITECTURE, contents }));
          print(`${path}: ${contents.length} packages`);
          continue;
        }
        const lines = await compare(path, contents);
        differs ||= lines.length > 0;
        print(`${path}: ${lines.length === 0 ? "the same" : `${lines.length} differences`}`);
        for (const line of lines) print(line);
      }
      if (differs) exit(1);
    });

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
