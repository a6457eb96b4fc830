import assert from "node:assert/strict";
import { appendFile, mkdir, mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import { systemClock } from "@coppice/core";
import { EventBuffer } from "./event-buffer.js";
import { startHostWatch } from "./host-watch.js";

const QUIET_MS = 300;

describe("a watch by the server, of a directory that it sees on the host", () => {
  let root: string;
  let buffer: EventBuffer;
  let stop: (() => Promise<void>) | undefined;
  const at = (name: string): string => join(root, "watched", name);

  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), "host-watch-"));
    await mkdir(at("tree/deep"), { recursive: true });
    await writeFile(at("old"), "x");
    buffer = new EventBuffer(100);
    stop = undefined;
  });
  afterEach(async () => {
    await stop?.();
    await rm(root, { recursive: true });
  });

  const watch = async (recursive: boolean, maxEntries = 10): Promise<void> => {
    stop = await startHostWatch({ path: "/watched", hostPath: at(""), recursive, buffer, maxEntries });
  };
  /** Events since the last call, until no more come. */
  const told = async (): Promise<string[]> => {
    const events: string[] = [];
    const { signal } = new AbortController();
    for (let timeoutMs = 5_000; ; timeoutMs = QUIET_MS) {
      await buffer.wait({ clock: systemClock, timeoutMs, signal });
      const more = buffer.take();
      if (more.length === 0) return events;
      events.push(...more.map(({ type, name }) => `${type} ${name}`));
    }
  };

  it("tells what comes, is written and goes, and nothing of what was there before", async () => {
    await watch(false);
    await writeFile(at("new"), "content");
    assert.deepEqual(await told(), ["create new", "write new"]);
    await writeFile(at("empty"), "");
    assert.deepEqual(await told(), ["create empty"]);
    await appendFile(at("old"), "more");
    assert.deepEqual(await told(), ["write old"]);
    await mkdir(at("directory"));
    assert.deepEqual(await told(), ["create directory"]);
    await rm(at("new"));
    assert.deepEqual(await told(), ["remove new"]);
    await writeFile(at("tree/below"), "x");
    await rename(at("old"), at("moved"));
    assert.deepEqual((await told()).toSorted(), ["create moved", "remove old", "write moved"]);
  });

  it("tells what is below, when it is recursive", async () => {
    await watch(true);
    await writeFile(at("tree/deep/leaf"), "x");
    assert.deepEqual(await told(), ["create tree/deep/leaf", "write tree/deep/leaf"]);
    await mkdir(at("made/below"), { recursive: true });
    await writeFile(at("made/below/leaf"), "x");
    const made = ["create made", "create made/below", "create made/below/leaf", "write made/below/leaf"];
    assert.deepEqual(await told(), made);
    await rm(at("tree"), { recursive: true });
    assert.deepEqual((await told()).toSorted(), ["remove tree", "remove tree/deep", "remove tree/deep/leaf"]);
  });

  it("has no more entries than it may, when it starts and later", async () => {
    const refused = {
      code: "resource_exhausted",
      message: "more than 3 entries to watch below /watched",
    };
    await writeFile(at("tree/deep/one-more"), "");
    await assert.rejects(watch(true, 3), refused);
    buffer = new EventBuffer(100);
    await watch(false, 3);
    await writeFile(at("third"), "");
    assert.deepEqual(await told(), ["create third"]);
    await writeFile(at("fourth"), "");
    await assert.rejects(async () => {
      for (;;) await told();
    }, refused);
  });
});
