import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

interface Core {
  readonly folder: string;
  readonly version: string;
  /** Commit that it was packed from; undefined in a checkout. */
  readonly commit: string | undefined;
}

/** This copy of core. */
export const CORE = describeCore(fileURLToPath(new URL("../..", import.meta.url)));

function describeCore(path: string): Core {
  const folder = resolve(path);
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as {
    readonly version: string;
    readonly gitHead?: string;
  };
  return { folder, version: about.version, commit: about.gitHead };
}

/** Property of the global object whose name all copies share: the first one that was loaded. */
const FIRST = Symbol.for("coppice.core");

/**
 * Refuses to be the second copy of core in a process: its errors and keys would be others than the server's. Every entry
 * of the package imports this, so a plugin with a copy of its own fails where it is loaded.
 */
const first = ((globalThis as typeof globalThis & { [FIRST]?: Core })[FIRST] ??= CORE);
if (first.folder !== CORE.folder) throw new Error(secondCopy(first, CORE));

function secondCopy(own: Core, second: Core): string {
  const root = installationOf(second.folder);
  const remedy =
    root === installationOf(own.folder)
      ? `\`npm dedupe\` in ${root}, when its version suits both`
      : `\`npm install ${own.folder}\` in ${root}, which links the server's copy`;
  return (
    `it brings a second @coppice/core: ${second.version} in ${second.folder}, beside the server's ${own.version} in ` +
    `${own.folder}. A server has one: packages name it in their peerDependencies. Mend it by ${remedy}`
  );
}

/** The folder in which `npm install` has put a package, directly or below others; that of the package in a checkout. */
function installationOf(folder: string): string {
  const [root = folder] = folder.split("/node_modules/", 1);
  return root;
}
