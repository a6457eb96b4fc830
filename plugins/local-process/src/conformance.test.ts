import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { agentBinary } from "@coppice/agent";
import { type ConformanceSubject, conformanceCases, testConformance } from "@coppice/conformance";
import { LocalProcessBackend } from "./local-process-backend.js";
import { silentLog } from "./testing/silent-log.js";

if (agentBinary() !== undefined) testKind("local-process", agentBinary());
testKind("local-process without the agent's program", "node");

function testKind(name: string, binary: string | undefined): void {
  // Node can hold an entry by its descriptor on Linux alone. The agent can everywhere.
  const isRaced = binary === "node" && process.platform !== "linux";
  const cases = conformanceCases.filter((each) => !isRaced || !each.name.includes("swapped for a link"));
  const makeSubject = async (): Promise<ConformanceSubject> => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-conformance-"));
    const backend = new LocalProcessBackend(
      {
        directory,
        writeInPlaceLimit: 262_144,
        diskScanEntries: 20_000,
        agentBinary: binary,
      },
      silentLog,
    );
    return {
      backend,
      facets: ["stopping"],
      abilities: binary === "node" ? [] : ["terminals", "watching"],
      async leaks() {
        return (await readdir(directory)).map((name) => `directory ${name}`);
      },
      async [Symbol.asyncDispose]() {
        await backend.close();
        await rm(directory, { recursive: true });
      },
    };
  };
  testConformance(name, makeSubject, { cases });
}
