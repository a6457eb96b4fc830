import { parseInput, queryNumber, SandboxError } from "@coppice/core";
import { z } from "zod";

const MAX_ID = 2 ** 32 - 2;
const MAX_MODE = 0o7777;

const decimal = (most: number) => queryNumber("a number", 10).pipe(z.int().max(most)).optional();

const query = z.object({
  path: z.string().min(1),
  uid: decimal(MAX_ID),
  gid: decimal(MAX_ID),
  mode: decimal(MAX_MODE),
  force: z.enum(["true", "false"]).optional(),
  depth: decimal(1000),
});

const id = z.int().min(0).max(MAX_ID).optional();

export const volumeMetadataBody = z.object({
  uid: id,
  gid: id,
  mode: z.int().min(0).max(MAX_MODE).optional(),
});

export type VolumeQuery = z.infer<typeof query>;

/** The query of a route of a volume's contents. @throws SandboxError invalid_argument */
export function parseVolumeQuery(parameters: URLSearchParams): VolumeQuery {
  const parsed = parseInput(query, Object.fromEntries(parameters));
  if (!parsed.path.includes("\0")) return parsed;
  throw new SandboxError("path_invalid", "a path cannot contain a NUL byte");
}
