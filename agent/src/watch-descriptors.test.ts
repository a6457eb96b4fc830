import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { eventually } from "@coppice/core/testing";
import { agentBinary } from "./built/agent-binary.js";
import type { AgentConnection } from "./agent-connection.js";
import { startHostAgent } from "./start-host-agent.js";
import { withoutBinary } from "./testing/agent-kinds.js";
import { openDescriptors } from "./testing/open-descriptors.js";
import { shell } from "./testing/run.js";

const BUILD = fileURLToPath(new URL("../../scripts/build-agent-for.mjs", import.meta.url));
const LIMIT = 128;
const EXHAUSTED = { reason: "host_resources_exhausted", message: /^watch .*: too many open files$/ };
const skip = withoutBinary || (process.platform !== "linux" && "the stand-ins for FreeBSD need Linux");

describe("a watch, where descriptors are few", { skip }, () => {
  let folder: string;
  let stopping: AbortController;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-descriptors-"));
  });
  afterEach(() => stopping.abort());
  after(() => rm(folder, { recursive: true, force: true }));

  async function startLimited(binary: string): Promise<AgentConnection> {
    const limited = join(await mkdtemp(join(folder, "agent-")), "agent.sh");
    await writeFile(limited, `#!/bin/sh\nulimit -n ${LIMIT}\nexec ${binary} "$@"\n`, { mode: 0o755 });
    return startHostAgent({ binary: limited });
  }

  /** Makes a directory with empty files. */
  function directoryOf(count: number): string {
    const directory = mkdtempSync(join(folder, "watched-"));
    for (let index = 0; index < count; index++) writeFileSync(join(directory, `file${index}`), "");
    return directory;
  }

  /** @returns the end of the watch, once it has begun. */
  async function watch(agent: AgentConnection, directory: string): Promise<{ ended: Promise<void> }> {
    stopping = new AbortController();
    const events = await agent.files.watch(directory, { recursive: true, signal: stopping.signal });
    const readAll = async (): Promise<void> => {
      for await (const _ of events);
    };
    return { ended: readAll() };
  }

  it("is refused, rather than leave out directories", async (test) => {
    const agent = await startLimited(agentBinary() ?? "");
    test.after(() => agent.close());
    const directory = directoryOf(0);
    mkdirSync(join(directory, "d/".repeat(LIMIT)), { recursive: true });
    await assert.rejects(watch(agent, directory), EXHAUSTED);
  });

  describe("by kqueue", () => {
    let agent: AgentConnection;
    let used: () => number;
    let atFirst: number;

    before(async () => {
      const binary = join(folder, "agent-for-freebsd");
      await promisify(execFile)(process.execPath, [BUILD, "stand-ins", binary]);
      agent = await startLimited(binary);
      const pid = Number((await shell(agent, "echo $PPID")).stdout);
      used = () => openDescriptors(pid);
      atFirst = used();
    });
    after(() => agent.close());

    const isAsAtFirst = () => eventually("all descriptors are given back", () => used() === atFirst);

    it("takes a descriptor for each entry, until it ends", async () => {
      await watch(agent, directoryOf(50));
      assert.ok(used() >= atFirst + 50, `${used()} descriptors, from ${atFirst}`);
      stopping.abort();
      await isAsAtFirst();
    });

    it("leaves descriptors for files and commands, or is refused", async () => {
      const outcomes = new Set<string>();
      for (let count = LIMIT - atFirst - 60; count <= LIMIT - atFirst; count += 3) {
        const directory = directoryOf(count);
        const outcome = await watch(agent, directory).then(
          () => "watched",
          (error: unknown) => error,
        );
        if (outcome !== "watched") await assert.rejects(Promise.reject(outcome), EXHAUSTED);
        outcomes.add(outcome === "watched" ? outcome : "refused");
        assert.equal((await agent.files.stat(directory)).kind, "directory");
        assert.equal((await shell(agent, "echo runs")).stdout.toString(), "runs\n");
        stopping.abort();
        await isAsAtFirst();
      }
      assert.deepEqual([...outcomes], ["watched", "refused"]);
    });

    it("ends with the reason when there are more entries later", async () => {
      const directory = directoryOf(1);
      const { ended } = await watch(agent, directory);
      for (let index = 0; index < LIMIT; index++) writeFileSync(join(directory, `more${index}`), "");
      await assert.rejects(ended, EXHAUSTED);
      await isAsAtFirst();
    });
  });
});
