import { mkdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "@coppice/core";
import { sandboxPaths } from "./sandbox-record.js";
import type { Launcher } from "./launcher.js";

/**
 * Tests an overlay in temporary namespaces.
 * @param options `sources` are bound as well.
 * @returns the reason why it fails.
 */
export async function tryOverlay(
  { launcher, directory }: { readonly launcher: Launcher; readonly directory: string },
  {
    firstId,
    isInMemory = false,
    options = "",
    sources = [],
  }: {
    readonly firstId?: number | undefined;
    readonly isInMemory?: boolean;
    readonly options?: string;
    readonly sources?: readonly string[];
  },
): Promise<string | undefined> {
  const trial = sandboxPaths(join(directory, "trial"));
  const names = ["lower", "root", "layer", "layer/upper", "layer/work"];
  const directories = names.map((name) => join(trial.directory, name));
  const [lower = "", root = "", layer = ""] = directories;
  const file = join(trial.directory, "file");
  const binds = sources.map(async (source) => {
    const isDirectory = await stat(source).then(
      (found) => found.isDirectory(),
      () => true,
    );
    return ["bind", isDirectory ? lower : file, source, "rdm"];
  });
  const words = [
    ...(isInMemory ? ["tmpfs", trial.directory, "", ""] : []),
    ...directories.flatMap((path) => ["directory", path, "755"]),
    "file",
    file,
    "644",
    "",
    ...(firstId === undefined ? [] : ["owner"]),
    "overlay",
    root,
    lower,
    layer,
    options,
    ...(await Promise.all(binds)).flat(),
    ...(firstId === undefined ? [] : ["users"]),
  ];
  await launcher.remove(trial.directory);
  await mkdir(trial.directory, { mode: 0o700 });
  try {
    await launcher.end(await launcher.launch(trial.directory, "", words, firstId));
    return undefined;
  } catch (error) {
    return messageOf(error);
  } finally {
    await launcher.remove(trial.directory);
  }
}
