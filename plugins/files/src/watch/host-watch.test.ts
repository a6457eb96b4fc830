import assert from "node:assert/strict";
import {
  appendFileSync,
  chmodSync,
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { SandboxError, systemClock } from "@coppice/core";
import { EventBuffer } from "./event-buffer.js";
import { HeldNames } from "./held-names.js";
import { HostWatch, type HostWatchOptions } from "./host-watch.js";

const QUIET_MS = 250;
const WAIT_MS = 5_000;

interface Scene {
  /** The watched directory, and one beside it. */
  readonly at: (name: string) => string;
  readonly aside: (name: string) => string;
  readonly buffer: EventBuffer;
  /** Acts, and compares what is told from then on, until no more comes. */
  readonly tells: (act: () => void, ...expected: readonly string[]) => Promise<void>;
}

async function watched(
  t: TestContext,
  options: Partial<HostWatchOptions> = {},
  prepare: (scene: Pick<Scene, "at" | "aside">) => void = () => undefined,
): Promise<Scene> {
  const root = mkdtempSync(join(tmpdir(), "host-watch-"));
  const at = (name: string): string => join(root, "watched", name);
  const aside = (name: string): string => join(root, "aside", name);
  for (const directory of [at(""), aside("")]) mkdirSync(directory);
  prepare({ at, aside });
  const buffer = new EventBuffer(1_000);
  const watch = new HostWatch({
    path: "/watched",
    hostPath: join(root, "watched"),
    recursive: true,
    buffer,
    maxEntries: 100,
    heldNames: new HeldNames(100),
    clock: systemClock,
    ...options,
  });
  t.after(async () => {
    await watch.close();
    rmSync(root, { recursive: true });
  });
  await watch.start();
  const { signal } = new AbortController();
  const tells: Scene["tells"] = async (act, ...expected) => {
    act();
    const told: string[] = [];
    for (
      let waitMs = WAIT_MS, more = true;
      more;
      waitMs = told.length < expected.length ? WAIT_MS : QUIET_MS
    ) {
      await buffer.wait({ clock: systemClock, timeoutMs: waitMs, signal });
      const events = buffer.take();
      told.push(...events.map(({ type, name }) => `${type} ${name}`));
      more = events.length > 0;
    }
    assert.deepEqual(told, expected);
  };
  return { at, aside, buffer, tells };
}

it("What is over before anybody could look is told as it happened", async (t) => {
  const { at, aside, tells } = await watched(t, {}, ({ at: to, aside: beside }) => {
    writeFileSync(to("kept"), "old");
    writeFileSync(beside("other"), "other");
    mkdirSync(to("tree"));
    writeFileSync(to("tree/leaf"), "x");
  });
  const save = (): void => {
    writeFileSync(at("draft"), "new");
    renameSync(at("draft"), at("kept"));
  };
  await tells(save, "create draft", "write draft", "rename draft", "create kept");
  const pass = (): void => {
    writeFileSync(at("brief"), "x");
    rmSync(at("brief"));
  };
  await tells(pass, "create brief", "write brief", "remove brief");
  const replace = (): void => {
    rmSync(at("kept"));
    writeFileSync(at("kept"), "again");
  };
  await tells(replace, "remove kept", "create kept", "write kept");
  await tells(() => renameSync(aside("other"), at("kept")), "create kept");
  const write = (): void => {
    appendFileSync(at("kept"), "more");
    renameSync(at("kept"), aside("kept"));
  };
  await tells(write, "write kept", "rename kept");
  const exchange = (): void => {
    renameSync(at("tree"), aside("tree"));
    mkdirSync(at("tree"));
  };
  await tells(exchange, "rename tree", "create tree");
  await tells(() => writeFileSync(at("tree/leaf"), ""), "create tree/leaf");
  await tells(() => writeFileSync(aside("tree/leaf"), "unseen"));
});

it("Where names cannot be held, a move out of the watch is told as a removal, and no other move", async (t) => {
  const { at, aside, tells } = await watched(t, { heldNames: new HeldNames(0) }, ({ at: to }) => {
    writeFileSync(to("a"), "x");
    mkdirSync(to("d"));
  });
  await tells(() => renameSync(at("a"), at("d/a")), "rename a", "create d/a");
  await tells(() => renameSync(at("d/a"), aside("a")), "remove d/a");
  await tells(() => renameSync(aside("a"), at("a")), "create a");
});

it("A host that tells of directories alone is told the same of", async (t) => {
  const { at, aside, tells } = await watched(t, { namesEntries: false }, ({ at: to, aside: beside }) => {
    writeFileSync(to("old"), "x");
    writeFileSync(beside("in"), "x");
  });
  await tells(() => writeFileSync(at("new"), "x"), "create new", "write new");
  await tells(() => appendFileSync(at("old"), "y"), "write old");
  await tells(() => chmodSync(at("old"), 0o600), "chmod old");
  await tells(() => renameSync(at("old"), at("moved")), "rename old", "create moved");
  await tells(() => renameSync(aside("in"), at("in")), "create in");
  await tells(() => renameSync(at("in"), aside("out")), "rename in");
  await tells(() => rmSync(at("new")), "remove new");
  const make = (): void => {
    mkdirSync(at("d"));
    writeFileSync(at("d/f"), "x");
  };
  await tells(make, "create d", "create d/f", "write d/f");
  await tells(() => rmSync(at("d"), { recursive: true }), "remove d/f", "remove d");
});

it(
  "More news than the kernel keeps is an error and no silent loss",
  { skip: process.platform !== "linux" && "only inotify has a queue" },
  async (t) => {
    const { at, buffer, tells } = await watched(t);
    const kept = Number(readFileSync("/proc/sys/fs/inotify/max_queued_events", "utf8"));
    await tells(() => writeFileSync(at("quiet"), ""), "create quiet");
    const files = ["a", "b"].map((name) => openSync(at(name), "w"));
    // In turn: of two changes that are alike the kernel keeps one. The server cannot read meanwhile.
    for (let told = 0; told < kept; told += files.length) for (const file of files) writeSync(file, "x");
    for (const file of files) closeSync(file);
    const isLost = (error: unknown): boolean =>
      error instanceof SandboxError && error.code === "resource_exhausted" && error.message.includes("lost");
    await assert.rejects(async () => {
      for (let waitedMs = 0; waitedMs < WAIT_MS; waitedMs += 20) {
        buffer.take();
        await delay(20);
      }
    }, isLost);
  },
);
