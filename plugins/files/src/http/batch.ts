import { HttpError, parseInput, SandboxError, type Logger } from "@coppice/core";
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
      const { status, message, reason } = explain(error, log);
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
  const { path: written } = await upload.write(path, once(bytes));
  return { path: written, ok: true, status: 200, bytes: bytes.length };
}

async function* once(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  if (bytes.length > 0) yield bytes;
}

function pathOf(entry: unknown): string {
  const { path } = (typeof entry === "object" && entry !== null ? entry : {}) as { path?: unknown };
  return typeof path === "string" ? path : "";
}

const STATUSES: Readonly<Partial<Record<SandboxError["code"], number>>> = {
  invalid_argument: 400,
  failed_precondition: 400,
  permission_denied: 403,
  not_found: 404,
  already_exists: 409,
  unavailable: 503,
};

function explain(error: unknown, log: Logger): Pick<HttpError, "status" | "message" | "reason"> {
  const stated = toStorageError(error);
  if (stated instanceof HttpError) return stated;
  if (stated instanceof SandboxError) {
    return { status: STATUSES[stated.code] ?? 500, message: stated.message, reason: stated.reason };
  }
  log.error({ err: error }, "writing an entry of a batch failed");
  return { status: 500, message: "internal error", reason: "internal_error" };
}
