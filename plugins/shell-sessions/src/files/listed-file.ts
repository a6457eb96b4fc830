import { posix } from "node:path";
import type { FileInfo } from "@coppice/core/backend";

const LETTERS = "rwxrwxrwx";

/** An entry of a listing as clients read it. */
export function listedFile(root: string, info: FileInfo): Readonly<Record<string, unknown>> {
  const mode = LETTERS.replace(/./g, (letter, index: number) =>
    (info.mode >> (8 - index)) & 1 ? letter : "-",
  );
  return {
    name: info.name,
    absolutePath: info.path,
    relativePath: posix.relative(root, info.path),
    type: typeOf(info),
    size: info.sizeBytes,
    modifiedAt: new Date(info.modifiedAtMs).toISOString(),
    mode,
    permissions: { readable: mode[0] === "r", writable: mode[1] === "w", executable: mode[2] === "x" },
  };
}

function typeOf({ kind, symlinkTarget }: FileInfo): string {
  if (symlinkTarget !== undefined) return "symlink";
  return kind === "unknown" ? "other" : kind;
}
