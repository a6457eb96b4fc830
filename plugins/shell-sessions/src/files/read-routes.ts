import { isUtf8 } from "node:buffer";
import { extname } from "node:path";
import { StringDecoder } from "node:string_decoder";
import type { OpenFile } from "@coppice/core/backend";
import { lookup } from "mime-types";
import { z } from "zod";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { ShellError } from "../shell/shell-error.js";
import { event, inputOf, type ShellRequest, type ShellRoute, success } from "../wire/route.js";
import { translated } from "./file-errors.js";
import { pathField, pathOf, sessionField } from "./session-path.js";

const readBody = z.object({
  path: pathField,
  encoding: z.enum(["utf-8", "utf8", "base64"]).nullish(),
  ...sessionField,
});

/** Of a stream. Base64 of it has no padding, so that clients may join the pieces. */
const CHUNK_BYTES = 65_535;

export function readRoutes({ maxFile }: ShellSessionsConfig): readonly ShellRoute[] {
  return [
    {
      method: "POST",
      path: "/api/read",
      async handle(request) {
        const { path, encoding, ...session } = inputOf(readBody, request.body);
        const absolute = pathOf(path, session, request);
        await using file = await open(request, absolute);
        const content = await translated(absolute, wholeOf(file, absolute, maxFile));
        const { isBinary, mimeType } = contentKind(absolute, content, { isWhole: true });
        const isBase64 = encoding === "base64" || (isBinary && !encoding);
        return {
          ...success({
            path: absolute,
            encoding: isBase64 ? "base64" : "utf-8",
            isBinary,
            mimeType,
            size: content.length,
          }),
          long: { content: [content] },
          isBase64,
        };
      },
    },
    {
      method: "POST",
      path: "/api/read/stream",
      handle(request) {
        const { path, encoding, ...session } = inputOf(readBody, request.body);
        const absolute = pathOf(path, session, request);
        return Promise.resolve({ events: fileEvents(request, { path: absolute, encoding }) });
      },
    },
  ];
}

function open({ sandbox }: ShellRequest, path: string): Promise<OpenFile> {
  return translated(path, sandbox.runtime.files.read(path));
}

async function wholeOf(file: OpenFile, path: string, maxBytes: number): Promise<Buffer> {
  const tooLarge = (): ShellError =>
    new ShellError("FILE_TOO_LARGE", `File is larger than ${maxBytes} bytes: ${path}`, { path, maxBytes });
  if (file.info.sizeBytes > maxBytes) throw tooLarge();
  const parts: Uint8Array[] = [];
  let size = 0;
  // One byte more: it may have grown.
  for await (const part of file.content({ length: maxBytes + 1 })) {
    parts.push(part);
    size += part.length;
  }
  if (size > maxBytes) throw tooLarge();
  return Buffer.concat(parts);
}

async function* fileEvents(
  request: ShellRequest,
  { path, encoding }: { readonly path: string; readonly encoding: string | null | undefined },
): AsyncGenerator<Readonly<Record<string, unknown>>> {
  await using file = await open(request, path);
  const decoder = new StringDecoder("utf8");
  let isBase64: boolean | undefined;
  let bytesRead = 0;
  const metadataOf = (beginning: Buffer): Readonly<Record<string, unknown>> => {
    const { isBinary, mimeType } = contentKind(path, beginning, { isWhole: beginning.length < CHUNK_BYTES });
    isBase64 = encoding === "base64" || (isBinary && !encoding);
    // Clients decode base64 only where the file is binary.
    const fields = { mimeType, size: file.info.sizeBytes, isBinary: isBinary || isBase64 };
    return event("metadata", { ...fields, encoding: isBase64 ? "base64" : "utf-8" });
  };
  for await (const chunk of chunksOf(file.content(), CHUNK_BYTES)) {
    if (isBase64 === undefined) yield metadataOf(chunk);
    bytesRead += chunk.length;
    yield event("chunk", { data: isBase64 === true ? chunk.toString("base64") : decoder.write(chunk) });
  }
  if (isBase64 === undefined) yield metadataOf(Buffer.alloc(0));
  const rest = isBase64 === true ? "" : decoder.end();
  if (rest !== "") yield event("chunk", { data: rest });
  yield event("complete", { bytesRead });
}

/** The same bytes in pieces of one size; the last one may be smaller. */
async function* chunksOf(source: AsyncIterable<Uint8Array>, size: number): AsyncGenerator<Buffer> {
  let waiting = Buffer.alloc(0);
  for await (const part of source) {
    waiting = waiting.length === 0 ? Buffer.from(part) : Buffer.concat([waiting, part]);
    for (; waiting.length >= size; waiting = waiting.subarray(size)) yield waiting.subarray(0, size);
  }
  if (waiting.length > 0) yield waiting;
}

interface ContentKind {
  readonly isBinary: boolean;
  readonly mimeType: string;
}

const NUL = 0;
const MAX_CHARACTER_BYTES = 4;

/** Kind of a file, by its beginning and its name. @param isWhole false: it may end inside a character. */
function contentKind(path: string, beginning: Buffer, { isWhole }: { isWhole: boolean }): ContentKind {
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
