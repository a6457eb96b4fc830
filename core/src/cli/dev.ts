import { existsSync, readdirSync, unwatchFile, watch, watchFile } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { entriesOfOthers } from "../boot/configure.js";
import { readConfig } from "../config/read.js";
import { BootError } from "../kernel/errors.js";
import { start } from "./start.js";
import { printFailure } from "./terminal.js";

const LOOK_MS = 250;
/** A build writes many files: nothing may have changed for this long. */
const SETTLED_MS = 300;
const BUILT = /\.([cm]?js|json|node|wasm)$/;

/**
 * Serves a configuration, and again from the beginning whenever it, or what others' plugins in it are built of, has
 * changed: this process then becomes a new one, because a module that was loaded stays as it was. Until a signal.
 */
export async function dev(file: string): Promise<number> {
  const changed = new AbortController();
  using _watching = watchAll(file, () => changed.abort());
  const code = await serve(file, changed.signal);
  if (!changed.signal.aborted) {
    if (code === 0) return 0;
    process.stderr.write("coppice: it waits for a change of the configuration or of a plugin\n");
    await new Promise((resolve) => changed.signal.addEventListener("abort", resolve, { once: true }));
  }
  process.stderr.write("coppice: something has changed: it starts again\n");
  process.execve?.(process.execPath, [process.execPath, ...process.execArgv, ...process.argv.slice(1)]);
  throw new Error("this system cannot replace a process by another one");
}

async function serve(file: string, until: AbortSignal): Promise<number> {
  try {
    return await start(file, { until });
  } catch (error) {
    if (!(error instanceof BootError)) throw error;
    printFailure(`cannot start\n${error.message.replace(/^/gm, "  ")}`);
    return 1;
  }
}

/** Calls back when the configuration or what a plugin is built of has changed, and then nothing for a while. */
function watchAll(file: string, onChange: () => void): Disposable {
  let timer: NodeJS.Timeout | undefined;
  const note = (): void => {
    clearTimeout(timer);
    timer = setTimeout(onChange, SETTLED_MS);
  };
  const noteBuilt = (_: string, name: string | null): void => {
    if (name === null || BUILT.test(name)) note();
  };
  const entries = entriesIn(file);
  const folders = new Set(entries.flatMap((entry) => foldersOf(dirname(entry), dirname(resolve(file)))));
  const watchers = [...folders].map((folder) => watch(folder, noteBuilt).on("error", () => undefined));
  // By their names: an editor puts another file in place of one, and a build may begin by removing the folder.
  const files = [file, ...entries];
  for (const each of files) watchFile(each, { interval: LOOK_MS }, note);
  return {
    [Symbol.dispose]: () => {
      clearTimeout(timer);
      for (const each of files) unwatchFile(each, note);
      for (const watcher of watchers) watcher.close();
    },
  };
}

function entriesIn(file: string): readonly string[] {
  try {
    return entriesOfOthers(readConfig(file, process.env));
  } catch {
    // The start says what is wrong with it.
    return [];
  }
}

/** A folder and those below it, but for packages, hidden ones, and all that are beside the configuration: data is there. */
function foldersOf(folder: string, home: string): readonly string[] {
  if (!existsSync(folder)) return [];
  if (home === folder || home.startsWith(join(folder, "/"))) return [folder];
  const below = readdirSync(folder, { withFileTypes: true }).filter(
    (entry) => entry.isDirectory() && entry.name !== "node_modules" && !entry.name.startsWith("."),
  );
  return [folder, ...below.flatMap(({ name }) => foldersOf(join(folder, name), home))];
}
