import { posix } from "node:path";
import type { FileInfo, Files } from "./files.js";

/** The files below a directory, by paths that begin there. @param directory absolute, and not `/`. */
export function filesBelow(files: Files, directory: string): Omit<Files, "watch" | "hostPath"> {
  // No `..` leads above the directory; links in it are resolved by the underlying files.
  const within = (path: string): string => posix.join(directory, posix.resolve("/", path));
  const shown = (path: string): string => {
    if (path === directory) return "/";
    return path.startsWith(`${directory}/`) ? path.slice(directory.length) : path;
  };
  const out = ({ symlinkTarget, ...info }: FileInfo): FileInfo => {
    const path = shown(info.path);
    const target = symlinkTarget !== undefined && { symlinkTarget: shown(symlinkTarget) };
    return { ...info, path, name: posix.basename(path), ...target };
  };
  const change = files.change?.bind(files);
  return {
    stat: async (path) => out(await files.stat(within(path))),
    async *list(path, depth) {
      for await (const info of files.list(within(path), depth)) yield out(info);
    },
    async read(path) {
      const file = await files.read(within(path));
      return {
        info: out(file.info),
        content: (options) => file.content(options),
        ...(file.direct && { direct: file.direct.bind(file) }),
        [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
      };
    },
    write: async (path, data, options) => out(await files.write(within(path), data, options)),
    makeDir: async (path, options) => out(await files.makeDir(within(path), options)),
    move: async (source, target, options) => out(await files.move(within(source), within(target), options)),
    remove: (path) => files.remove(within(path)),
    ...(change && { change: async (path, wanted) => out(await change(within(path), wanted)) }),
  };
}
