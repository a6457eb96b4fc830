import { isUtf8 } from "node:buffer";
import { extname } from "node:path";
import { lookup } from "mime-types";

export interface ContentKind {
  readonly isBinary: boolean;
  readonly mimeType: string;
}

const NUL = 0;
const MAX_CHARACTER_BYTES = 4;

/** Kind of a file, by its beginning and its name. @param isWhole false: it may end inside a character. */
export function contentKind(path: string, beginning: Buffer, { isWhole }: { isWhole: boolean }): ContentKind {
  const isBinary = beginning.includes(NUL) || !isText(beginning, isWhole);
  const named = lookup(extname(path)) || undefined;
  // Sources of TypeScript have the extension of a film.
  const isMistaken = !isBinary && named !== undefined && /^(video|audio)\//.test(named);
  if (named !== undefined && !isMistaken) return { isBinary, mimeType: named };
  return { isBinary, mimeType: isBinary ? "application/octet-stream" : "text/plain" };
}

function isText(bytes: Buffer, isWhole: boolean): boolean {
  if (isUtf8(bytes)) return true;
  if (isWhole) return false;
  for (let cut = 1; cut < MAX_CHARACTER_BYTES; cut++) if (isUtf8(bytes.subarray(0, -cut))) return true;
  return false;
}
