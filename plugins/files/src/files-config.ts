import { duration, size } from "@coppice/core";
import { z } from "zod";

const count = z.int().min(1);

export const filesConfig = z.strictObject({
  maxUpload: size("10GiB").describe("largest body of an upload request, after decompression"),
  maxFilesPerUpload: count
    .default(1000)
    .describe("most parts of one multipart upload, entries of one batch, sources of one composition"),
  maxBatch: size("4MiB").describe("largest body of POST /files/batch and /files/compose"),
  downloadLinkLifetime: duration("1h").describe("how long a link of POST /files/download-url works"),
  maxListEntries: count.default(100_000).describe("most entries of one directory listing"),
  maxWatchersPerSandbox: count.default(64).describe("most directory watches of one sandbox at a time"),
  maxWatchedEntries: count
    .default(20_000)
    .describe(
      "most files and directories below a watched directory, where the server watches it without an agent",
    ),
  maxBufferedEvents: count
    .default(10_000)
    .describe("most events that wait for their reader; one more ends the watch with an error"),
  maxHeldEvents: size("256MiB").describe(
    "events of all watches that wait for their readers, over 64 KiB each; beyond it the watch that has the most, of the sandbox and tenant that have the most, ends with an error",
  ),
  keepalive: duration("50s").describe(
    "silence on a watch stream before a keepalive, unless the client asks for another time",
  ),
});

export type FilesConfig = z.infer<typeof filesConfig>;
