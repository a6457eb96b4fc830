import { randomUUID } from "node:crypto";
import { createWriteStream } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { once } from "node:events";
import { join } from "node:path";
import { finished } from "node:stream/promises";
import { BoundedBytes, SandboxError } from "@coppice/core";
import { DEFAULT_PATH, exitText, type Sandbox } from "@coppice/core/backend";
import { runInGuest } from "../guest/guest-run.js";
import { layerOfFile, LAYOUT_NAME, writeLayout } from "../images/write-layout.js";
import { BuildFailure } from "../model/build-record.js";
import type { BuildTools, Progress } from "./build-tools.js";

/**
 * Packs the root, without the directories that something is mounted on: unpacking makes them. busybox has no options to
 * leave them out.
 */
const PACK = `
shopt -s dotglob nullglob
mounted=" " names=() options=()
while read -r _ _ _ _ point _; do mounted+="$point "; done < /proc/self/mountinfo
for entry in /*; do
  case $mounted in *" $entry "*) [ ! -d "$entry" ] || continue ;; esac
  names+=(".$entry")
done
case $(tar --version 2> /dev/null) in
*GNU*) options=(--one-file-system --numeric-owner --xattrs "--xattrs-include=*") ;;
esac
cd / && exec tar -c -f - "\${options[@]}" "\${names[@]}"
`;

/**
 * Makes an image of another one. Where it would stand on more images than can be mounted, the other one is made flat, and
 * the making runs again.
 */
export async function withRoom(
  before: Progress,
  tools: BuildTools,
  make: (below: Progress) => Promise<Progress>,
): Promise<Progress> {
  try {
    return await make(before);
  } catch (error) {
    if (!(error instanceof SandboxError) || error.reason !== "image_too_deep") throw error;
    tools.print("info", "There are too many layers: they are merged, and the step runs again");
    return make(await flattened(before, tools));
  }
}

/** The same files in an image that stands on no other, in the cache, too. */
async function flattened(before: Progress, tools: BuildTools): Promise<Progress> {
  const { workspace, signal, options } = tools;
  const { images, layouts, settings } = options;
  const { maxSize: maxBytes, maxEntries } = settings.images;
  const directory = join(layouts(), randomUUID());
  const layout = join(directory, LAYOUT_NAME);
  try {
    await mkdir(join(layout, "blobs/sha256"), { recursive: true, mode: 0o700 });
    await workspace.open(before.image);
    const archive = join(directory, "root.tar");
    await pack(await workspace.sandbox(), archive, { maxBytes, signal });
    await writeLayout(layout, await layerOfFile(layout, archive));
    const source = { layout, reference: LAYOUT_NAME, maxBytes, maxEntries };
    const made = await workspace.unpack((image) => images.unpack(image, source, signal));
    return tools.keep({ ...before, ...made });
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

async function pack(
  sandbox: Sandbox,
  path: string,
  { maxBytes, signal }: { readonly maxBytes: number; readonly signal: AbortSignal },
): Promise<void> {
  const file = createWriteStream(path, { mode: 0o600 });
  let failure: Error | undefined;
  file.on("error", (error) => (failure = error));
  let bytes = 0;
  const problem = new BoundedBytes(500, "last");
  try {
    const exit = await runInGuest(
      sandbox,
      {
        path: "/bin/bash",
        args: ["--noprofile", "--norc", "-c", PACK],
        env: { PATH: DEFAULT_PATH },
        cwd: "/",
        user: "root",
      },
      {
        signal,
        async onOutput({ stream, data }) {
          if (stream === "stderr") {
            problem.push(data);
            return;
          }
          if (failure !== undefined) throw failure;
          bytes += data.byteLength;
          if (bytes > maxBytes)
            throw new BuildFailure(`the files have more than ${maxBytes} bytes`, undefined);
          if (!file.write(data)) await once(file, "drain", { signal });
        },
      },
    );
    if (exit.code !== 0)
      throw new BuildFailure(
        `the layers cannot be merged: ${exitText(exit)}: ${problem.text.trim()}`,
        undefined,
      );
    file.end();
    await finished(file);
  } finally {
    file.destroy();
  }
}
