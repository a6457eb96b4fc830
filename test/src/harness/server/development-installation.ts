import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type Document, parseDocument } from "yaml";
import type { Installation } from "./server-process.js";

const DEVELOPMENT = fileURLToPath(new URL("../../../../config/development.yaml", import.meta.url));

/** Makes sandboxes plain processes of this user: what a stranger runs in one shows on this machine. */
function usePlainProcesses(document: Document): void {
  document.setIn(["sandboxes", "defaultBackend"], "local-process");
  document.deleteIn(["plugins", "linux-namespaces"]);
}

/**
 * `config/development.yaml` on free ports, with a folder of its own and without recipes.
 * @param change edits it further.
 */
export async function makeDevelopmentInstallation(
  change: (document: Document, directory: string) => void = usePlainProcesses,
): Promise<Installation & { readonly keyFile: string }> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-development-"));
  const configFile = join(directory, "coppice.yaml");
  const document = parseDocument(await readFile(DEVELOPMENT, "utf8"));
  for (const name of ["api", "envd", "code", "ops"]) document.setIn(["listeners", name, "port"], 0);
  const dataDir = join(directory, "data");
  document.setIn(["dataDir"], dataDir);
  // Their paths are relative to the root of the project.
  document.deleteIn(["plugins", "templates", "recipes"]);
  change(document, directory);
  await writeFile(configFile, document.toString());
  return {
    directory,
    configFile,
    keyFile: join(dataDir, "access", "development-key"),
    remove: () => rm(directory, { recursive: true, force: true }),
  };
}
