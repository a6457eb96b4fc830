import { Readable } from "node:stream";
import { parseInput, SandboxError, toHttpError, type Logger } from "@coppice/core";
import { z } from "zod";
import type { Upload } from "../service/file-service.js";
import { toStorageError } from "./storage-error.js";

/**
 * The body of POST /files/batch. Entries are validated one by one, so that an invalid one does not affect the others.
 */
export const batchBody = z.array(z.unknown());

const batchEntry = z.object({
  path: z.string().min(1),
  content: z.string().optional(),
  content_b64: z
    .string()
    .regex(/^[A-Za-z0-9+/]*={0,2}$/, "not base64")
    .optional(),
});

/** Result of one entry of a batch; `status` is that of a separate request for the file. */
export interface BatchResult {
  readonly path: string;
  readonly ok: boolean;
  readonly status: number;
  readonly bytes?: number;
  readonly error?: string;
  readonly reason?: string;
}

/** POST /files/batch: writes the entries; the answer has one result for each, in order. */
export async function writeBatch(
  upload: Upload,
  entries: readonly unknown[],
  log: Logger,
): Promise<readonly BatchResult[]> {
  const results: BatchResult[] = [];
  for (const entry of entries) {
    try {
      results.push(await writeEntry(upload, entry));
    } catch (error) {
      const { status, message, reason } = toHttpError(toStorageError(error), log);
      results.push({ path: pathOf(entry), ok: false, status, error: message, reason });
    }
  }
  return results;
}

async function writeEntry(upload: Upload, entry: unknown): Promise<BatchResult> {
  const { path, content, content_b64: base64 } = parseInput(batchEntry, entry);
  if ((content === undefined) === (base64 === undefined)) {
    throw new SandboxError("request_invalid", "validation error: one of content and content_b64 is needed");
  }
  const bytes = base64 === undefined ? Buffer.from(content ?? "") : Buffer.from(base64, "base64");
  const { path: written } = await upload.write(path, Readable.from(bytes.length > 0 ? [bytes] : []));
  return { path: written, ok: true, status: 200, bytes: bytes.length };
}

function pathOf(entry: unknown): string {
  const { path } = (typeof entry === "object" && entry !== null ? entry : {}) as { path?: unknown };
  return typeof path === "string" ? path : "";
}
