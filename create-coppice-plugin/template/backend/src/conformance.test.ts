import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { testConformance } from "@coppice/conformance";
import { DirectoryBackend } from "./directory-backend.js";

testConformance("{{plugin}}", async () => {
  const directory = await mkdtemp(join(tmpdir(), "{{plugin}}-"));
  return {
    backend: new DirectoryBackend(directory),
    // What its sandboxes have: these must work, and the others must be absent.
    facets: ["lost"],
    // Those that it enforces.
    limits: [],
    leaks: async () => (await readdir(directory)).map((name) => `directory ${name}`),
    [Symbol.asyncDispose]: () => rm(directory, { recursive: true }),
  };
});
