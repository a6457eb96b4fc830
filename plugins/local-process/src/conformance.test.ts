import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { testConformance } from "@coppice/core/testing";
import { LocalProcessBackend } from "./local-process-backend.js";

testConformance("local-process", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-conformance-"));
  const backend = new LocalProcessBackend({
    directory,
    writeInPlaceLimit: 262_144,
    diskScanEntries: 20_000,
    killTimeoutMs: 5_000,
  });
  return {
    backend,
    facets: [],
    async leaks() {
      const names = await readdir(directory);
      return names.filter((name) => !name.startsWith("coppice-pipes-")).map((name) => `directory ${name}`);
    },
    async [Symbol.asyncDispose]() {
      await backend.close();
      await rm(directory, { recursive: true });
    },
  };
});
