import { z } from "zod";
import { SandboxError } from "@coppice/core";
import type { UserFiles } from "../service/file-service.js";
import { toStorageError } from "./storage-error.js";
import { type WrittenFile, toWrittenFile } from "./written-file.js";

/** The body of POST /files/compose. Empty values get envd's own refusals. */
export const composeBody = z.object({
  source_paths: z.array(z.string()).nullish(),
  destination: z.string().nullish(),
  username: z.string().nullish(),
});

/** POST /files/compose: joins files into one and removes them. */
export async function composeFiles(
  files: UserFiles,
  { source_paths: sources, destination }: z.infer<typeof composeBody>,
  maxSources: number,
): Promise<WrittenFile> {
  if (!sources?.length) throw new SandboxError("request_invalid", "source_paths must not be empty");
  if (!destination) throw new SandboxError("request_invalid", "destination is required");
  if (sources.length > maxSources) {
    throw new SandboxError("request_invalid", `one request can compose ${maxSources} files`);
  }
  try {
    return toWrittenFile(await files.compose(sources, destination));
  } catch (error) {
    throw toStorageError(error);
  }
}
