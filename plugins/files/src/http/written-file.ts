import type { FileInfo } from "@coppice/core/backend";

/** A written file in an answer: exactly these keys, because tests of clients compare deeply. */
export interface WrittenFile {
  readonly path: string;
  readonly name: string;
  readonly type: "file";
  readonly metadata?: Readonly<Record<string, string>>;
}

export function toWrittenFile({ path, name, metadata }: FileInfo): WrittenFile {
  const isDescribed = Object.keys(metadata).length > 0;
  return { path, name, type: "file", ...(isDescribed && { metadata }) };
}
