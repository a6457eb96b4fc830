import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join, relative, sep } from "node:path";
import { MissingPrerequisite, ROOT, workspaces } from "../toolchain/project.mjs";

/** The compiled file of a path in the repository, and of a folder: `core/src/kernel` becomes `core/dist/kernel`. */
function compiled(path) {
  const [, workspace, rest = ""] = /^((?:plugins\/)?[^/]+)(?:\/src(\/.*)?)?$/.exec(path) ?? [];
  if (workspace === undefined) throw new MissingPrerequisite(`${path} is not in the sources of a workspace`);
  return join(ROOT, workspace, "dist", rest.replace(/\.ts$/, ".js"));
}

/** The source of a compiled test file, from the root of the repository: what `npm test` takes. */
export function sourceOf(file) {
  return relative(ROOT, file).replace(`${sep}dist${sep}`, `${sep}src${sep}`).replace(/\.js$/, ".ts");
}

/**
 * Compiled test files: those of the named workspaces, folders and files, or all. The longest, which start whole servers, then
 * come first, so that short ones fill the end of a run.
 */
export async function testFiles(paths) {
  const chosen =
    paths.length > 0
      ? paths.map((path) => path.replace(/\/$/, ""))
      : // One that only carries others has nothing to compile.
        (await workspaces()).reverse().filter((name) => existsSync(join(ROOT, name, "dist")));
  const found = new Set();
  for (const path of chosen) {
    const file = compiled(path);
    if (path.endsWith(".ts") && existsSync(file)) found.add(file);
    else if (path.endsWith(".ts") || !existsSync(file))
      throw new MissingPrerequisite(`${path} does not exist`);
    else
      for (const each of (await readdir(file, { recursive: true })).sort())
        if (each.endsWith(".test.js")) found.add(join(file, each));
  }
  return [...found];
}
