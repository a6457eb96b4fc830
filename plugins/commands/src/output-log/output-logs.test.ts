import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { copyFile, mkdir, readdir, readFile, stat, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fakeClock } from "@coppice/core/testing";
import type { SandboxLogs } from "../contract/commands.js";
import { joined, openLogs, temporaryDirectory } from "../testing/log-scene.js";
import { diskFiles, excessOfSandbox, type LogFile, type LogFiles } from "./log-files.js";
import { SandboxLog } from "./sandbox-log.js";
import { SegmentIndex } from "./segment-index.js";

const KIB = 1024;

/** All of a command's kept output, page by page. */
async function readPages(log: SandboxLogs, id: string, limitBytes: number, from = 0): Promise<Buffer> {
  const parts: Buffer[] = [];
  for (let cursor = from; ;) {
    const page = await log.page(id, { cursor, limitBytes });
    const bytes = await joined(page.pieces);
    assert(bytes.length <= limitBytes, `a page of ${bytes.length} bytes`);
    if (page.truncatedBefore === undefined) assert.equal(page.nextCursor, cursor + bytes.length);
    else assert.equal(page.nextCursor, page.truncatedBefore + bytes.length);
    if (page.nextCursor === cursor) return Buffer.concat(parts);
    parts.push(bytes);
    cursor = page.nextCursor;
  }
}

const filesOf = async (directory: string): Promise<readonly string[]> =>
  (await readdir(directory).catch(() => [])).toSorted((one, other) => one.localeCompare(other));

it("output is kept by command and stream, in order, under cursors that count all of it", async (context) => {
  await using scene = await open({ directory: await temporaryDirectory(context) });
  const { logs } = scene;
  const one = scene.begin("sandbox1", "mine");
  const other = scene.begin();
  one.write("out ");
  other.write("another command");
  one.write("err ", "stderr");
  one.write("pty", "terminal");

  const log = logs.of("sandbox1");
  const page = await log.page(one.id, { cursor: 0, limitBytes: 100 });
  assert.deepEqual(
    page.pieces.map(({ stream, offset, data }) => [stream, offset, Buffer.from(data).toString()]),
    [
      ["stdout", 0, "out "],
      ["stderr", 4, "err "],
      ["terminal", 8, "pty"],
    ],
  );
  assert.deepEqual([page.nextCursor, page.truncatedBefore, page.command.phase], [11, undefined, "running"]);
  const middle = await log.page(one.id, { cursor: 2, limitBytes: 4 });
  assert.deepEqual([(await joined(middle.pieces)).toString(), middle.nextCursor], ["t er", 6]);
  assert.deepEqual((await log.page(one.id, { cursor: 11, limitBytes: 4 })).pieces, []);
  assert.equal((await log.page(one.id, { cursor: 500, limitBytes: 4 })).nextCursor, 500);

  one.end({ exit: { signal: "SIGKILL" }, outcome: "killed", endedAtMs: 7 });
  other.end();
  assert.equal((await log.find({ pid: 100 })).phase, "killed");
  assert.equal((await log.find({ tag: "mine" })).end?.endedAtMs, 7);
  assert.deepEqual((await Array.fromAsync(log.list())).map(({ pid, phase }) => `${pid} ${phase}`).sort(), [
    "100 killed",
    "101 exited",
  ]);
  const everything = await Array.fromAsync(log.outputSince(0));
  assert.deepEqual(
    everything.map(({ id }) => id),
    [one.id, other.id, one.id, one.id],
  );
  await assert.rejects(log.find({ pid: 999 }), { code: "not_found" });
  await assert.rejects(logs.of("../sandbox1").find({ pid: 100 }), { code: "not_found" });
});

it("a reused pid names the newest command; ids are unique", async (context) => {
  const directory = await temporaryDirectory(context);
  await using first = await open({ directory });
  const old = first.begin();
  old.write("old");
  old.end();
  await first.logs.close();
  await using second = await open({ directory });
  const young = second.begin();
  young.write("new");
  const log = second.logs.of("sandbox1");
  assert.equal((await log.find({ pid: 100 })).id, young.id);
  assert.equal((await log.find({ id: old.id })).phase, "exited");
  assert.equal((await readPages(log, old.id, 100)).toString(), "old");
});

it("many writers and readers at once: each reader gets each byte of its command once", async (context) => {
  const directory = await temporaryDirectory(context);
  await using scene = await open({ directory, settings: { maxPerSandbox: "32MiB" } });
  const commands = Array.from({ length: 12 }, () => scene.begin());
  const log = scene.logs.of("sandbox1");
  const read = commands.map(async ({ id }, reader) => {
    const parts: Buffer[] = [];
    for (let cursor = 0; ;) {
      const page = await log.page(id, { cursor, limitBytes: 1000 + reader * 20_000 });
      parts.push(await joined(page.pieces));
      assert.equal(page.truncatedBefore, undefined);
      if (page.nextCursor === cursor && page.command.phase !== "running") return Buffer.concat(parts);
      cursor = page.nextCursor;
      await sleep(1);
    }
  });
  const write = commands.map(async (command, writer) => {
    for (let piece = 0; piece < 150; piece += 1) {
      command.write(randomBytes((piece * 37 + writer * 1013) % 5000));
      if (piece % 10 === writer % 10) await sleep(1);
    }
    command.end();
  });
  await Promise.all(write);
  const received = await Promise.all(read);
  for (const [at, command] of commands.entries()) {
    assert(received[at]?.equals(command.written), `command ${at} was read as it was written`);
    assert((await readPages(log, command.id, 7777, 1234)).equals(command.written.subarray(1234)));
  }
  const files = await filesOf(join(directory, "sandbox1"));
  assert(files.length > 1, `the log rotates: ${files.join(" ")}`);
});

it("beyond a sandbox's limit the oldest output is removed, and a cursor into it learns where to go on", async (context) => {
  const directory = await temporaryDirectory(context);
  await using scene = await open({ directory, settings: { maxPerSandbox: "512KiB" } });
  const old = scene.begin();
  old.write("gone soon");
  old.end();
  const command = scene.begin();
  const pieces = Array.from({ length: 400 }, (_, at) => Buffer.alloc(8 * KIB, at % 251));
  await command.writeAll(pieces);
  const log = scene.logs.of("sandbox1");
  await log.find({ id: command.id });
  await scene.logs.sweep();
  const page = await log.page(command.id, { cursor: 0, limitBytes: 10 });
  assert(page.truncatedBefore !== undefined && page.truncatedBefore > 2_000_000, "the beginning is gone");
  const kept = await joined(command.recording.output({ from: 0 }));
  assert(kept.equals(command.written.subarray(page.truncatedBefore)), "the rest is there to the last byte");
  assert.equal(await command.recording.keptFrom(5), page.truncatedBefore);
  assert(kept.length > 256 * KIB && scene.logs.bytes <= 600 * KIB, `${scene.logs.bytes} bytes are kept`);
  await assert.rejects(log.find({ id: old.id }), { code: "not_found" });
  assert((await scene.metric("removed_bytes_total")) > 2_000_000);
});

it("a full log writes over its oldest file, never over one that is being read", async (context) => {
  const directory = await temporaryDirectory(context);
  const settings = { maxPerSandbox: "512KiB" };
  const made: string[] = [];
  const replaced: string[] = [];
  const files: LogFiles = {
    ...diskFiles,
    create(path) {
      made.push(path);
      return diskFiles.create(path);
    },
    replace(old, path) {
      replaced.push(old);
      return diskFiles.replace(old, path);
    },
  };
  await using scene = await open({ directory, settings, files });
  const log = scene.logs.of("sandbox1");
  const command = scene.begin();
  // Large pieces are written without a copy; small ones are gathered into a batch first.
  const flood = async (): Promise<void> => {
    await command.writeAll(
      Array.from({ length: 100 }, (_, at) => randomBytes(at % 2 === 0 ? 70 * KIB : 10 * KIB)),
    );
    await log.find({ id: command.id });
    await scene.logs.sweep();
  };
  await flood();

  const reading = command.recording.output({ from: 0 })[Symbol.asyncIterator]();
  const first = await reading.next();
  assert(first.done !== true);
  const [beingRead = ""] = await filesOf(join(directory, "sandbox1"));
  made.length = 0;
  await flood();
  assert(replaced.length > made.length, `${replaced.length} files were written over, ${made.length} made`);
  assert(!replaced.includes(join(directory, "sandbox1", beingRead)), "not the one that is being read");
  const rest = await Array.fromAsync({ [Symbol.asyncIterator]: () => reading });
  for (const { offset, data } of [first.value, ...rest]) {
    const written = command.written.subarray(offset, offset + data.length);
    assert(written.equals(data), `${data.length} bytes at ${offset} are what was written`);
  }
  const tail = command.written.subarray(-200 * KIB);
  assert((await readPages(log, command.id, 50_000, command.written.length - tail.length)).equals(tail));

  await scene.logs.close();
  await using next = await open({ directory, settings });
  const page = await next.logs.of("sandbox1").page(command.id, { cursor: 0, limitBytes: 1024 * KIB });
  const kept = await joined(page.pieces);
  assert(kept.length > 256 * KIB, `${kept.length} bytes are kept`);
  assert(command.written.subarray(-kept.length).equals(kept), "nothing of what was written over is read");
});

it("a reused file ends with its new content", async (context) => {
  const directory = await temporaryDirectory(context);
  let replaced = 0;
  const files: LogFiles = {
    ...diskFiles,
    replace(old, path) {
      replaced += 1;
      return diskFiles.replace(old, path);
    },
  };
  await using scene = await open({ directory, settings: { maxPerSandbox: "512KiB" }, files });
  const command = scene.begin();
  // Large files first, so that those which come after are shorter.
  for (const [pieces, size] of [
    [6, 120 * KIB],
    [300, 2 * KIB],
  ] as const) {
    for (let piece = 0; piece < pieces; piece += 1) {
      await command.writeAll([randomBytes(size)]);
      if (piece % 8 === 0) await scene.logs.of("sandbox1").find({ id: command.id });
    }
  }
  await scene.logs.close();
  let onDisk = 0;
  for (const name of await filesOf(join(directory, "sandbox1"))) {
    onDisk += (await stat(join(directory, "sandbox1", name))).size;
  }
  assert(replaced > 0);
  assert.equal(onDisk, scene.logs.bytes);
});

it("a segment that is being written is removed for its age alone", () => {
  const log = new SandboxLog("sandbox1", "/nowhere");
  const segments = [1, 2].map(() => Object.assign(log.next(0), { bytes: 100 }));
  for (const segment of segments) log.add(segment);
  const [finished, written] = segments;
  assert(finished !== undefined && written !== undefined);
  written.index = new SegmentIndex(0);
  const limits = {
    maxPerSandbox: 50,
    maxSegmentsPerSandbox: 10,
    maxTotal: 1000,
    maxSandboxes: 10,
    maxAge: 1000,
  };
  assert.deepEqual(excessOfSandbox(log, limits, 999), [{ log, segment: finished }]);
  assert.deepEqual(excessOfSandbox(log, { ...limits, maxPerSandbox: 500, maxSegmentsPerSandbox: 0 }, 999), [
    { log, segment: finished },
  ]);
  assert.deepEqual(
    excessOfSandbox(log, limits, 1000).map(({ segment }) => segment),
    segments,
  );
});

it("many short commands are bounded too, and the newest of them are found", async (context) => {
  const directory = await temporaryDirectory(context);
  await using scene = await open({ directory, settings: { maxPerSandbox: "2MiB" } });
  let last = "";
  for (let at = 0; at < 12_000; at += 1) {
    const command = scene.begin();
    command.write(`${at}\n`);
    command.end();
    last = command.id;
    if (at % 500 === 0) await scene.logs.of("sandbox1").find({ id: last });
  }
  const log = scene.logs.of("sandbox1");
  assert.equal((await readPages(log, last, 100)).toString(), "11999\n");
  await scene.logs.sweep();
  assert(scene.logs.bytes < 3 * KIB * KIB, `${scene.logs.bytes} bytes are kept`);
  const listed = await Array.fromAsync(log.list());
  assert(listed.length > 2000 && listed.length < 12_000, `${listed.length} commands are kept`);
  assert.equal(new Set(listed.map(({ id }) => id)).size, listed.length);
});

it("by total size, and by age, the oldest output is removed first; empty directories, too", async (context) => {
  const directory = await temporaryDirectory(context);
  const clock = fakeClock(Date.now());
  const limits = { maxTotal: "300KiB", maxPerSandbox: "1MiB", maxAge: "1h", maxSandboxes: 4 };
  // The fake clock jumps by hours while the real disk still writes.
  const settings = { ...limits, stallTimeout: "1d" };
  await using scene = await open({ directory, settings, clock });
  for (const name of ["a", "b", "c", "d", "e"]) {
    const command = scene.begin(name);
    command.write(randomBytes(name === "e" ? 10 : 90 * KIB));
    command.end();
    await scene.logs.of(name).find({ id: command.id });
    scene.logs.release(name);
    await clock.advance(60_000);
  }
  await scene.logs.sweep();
  assert.deepEqual(await filesOf(directory), ["b", "c", "d", "e"], "a went by size and number");
  await clock.advance(56 * 60_000);
  await scene.logs.sweep();
  assert.deepEqual(await filesOf(directory), ["c", "d", "e"], "b is an hour old");
  const running = scene.begin("f");
  running.write("early");
  await scene.logs.of("f").find({ id: running.id });
  await clock.advance(61 * 60_000);
  await scene.logs.sweep();
  assert.deepEqual(await filesOf(directory), [], "also of a command that still runs");
  running.write("late");
  const page = await scene.logs.of("f").page(running.id, { cursor: 0, limitBytes: 100 });
  assert.deepEqual([page.truncatedBefore, page.nextCursor], [5, 9]);
});

it("a tenant with much output displaces its own logs, not those of another, also after a restart", async (context) => {
  const directory = await temporaryDirectory(context);
  const settings = { maxTotal: "1MiB", maxPerSandbox: "1MiB", maxSandboxes: 8 };
  const write = async (scene: Awaited<ReturnType<typeof open>>, name: string, owner: string) => {
    const command = scene.begin(name, undefined, owner);
    command.write(randomBytes(90 * KIB));
    command.end();
    await scene.logs.of(name).find({ id: command.id });
    scene.logs.release(name);
    return command;
  };
  let id: string;
  {
    await using scene = await open({ directory, settings });
    ({ id } = await write(scene, "a", "acme"));
  }
  await using scene = await open({ directory, settings });
  for (let index = 0; index < 30; index += 1) await write(scene, `e${index}`, "evil");
  await scene.logs.sweep();
  const page = await scene.logs.of("a").page(id, { cursor: 0, limitBytes: KIB });
  assert.deepEqual([page.truncatedBefore, page.nextCursor], [undefined, KIB]);
  const left = (await filesOf(directory)).map((name) => name.split(".")[0]);
  assert.deepEqual(left, ["a", "e23", "e24", "e25", "e26", "e27", "e28", "e29"]);
});

it("the number of sandboxes with a log is bounded", async (context) => {
  const directory = await temporaryDirectory(context);
  await using scene = await open({ directory, settings: { maxSandboxes: 3 } });
  for (const name of ["a", "b", "c", "d", "e"]) {
    const command = scene.begin(name);
    command.write("x");
    command.end();
    await scene.logs.of(name).find({ id: command.id });
    scene.logs.release(name);
    await sleep(5);
  }
  await scene.logs.sweep();
  assert.deepEqual(await filesOf(directory), ["c", "d", "e"]);
});

it("a new server reads what the last one wrote; a command without an end is lost", async (context) => {
  const directory = await temporaryDirectory(context);
  await using first = await open({ directory, settings: { maxPerSandbox: "4MiB" } });
  const [ended, cut] = [first.begin(), first.begin()];
  await ended.writeAll(Array.from({ length: 60 }, () => randomBytes(10 * KIB)));
  cut.write("unfinished");
  ended.end({ exit: { code: 3 }, outcome: "error", endedAtMs: 9 });
  await first.logs.close();
  const stray = join(directory, "sandbox1", "notes.txt");
  await writeFile(stray, "left alone");
  await writeFile(join(directory, "a-file"), "left alone");
  await mkdir(join(directory, "empty"));

  await using second = await open({ directory });
  const log = second.logs.of("sandbox1");
  assert((await readPages(log, ended.id, 50_000)).equals(ended.written));
  assert.deepEqual((await log.find({ id: ended.id })).end, {
    exit: { code: 3 },
    outcome: "error",
    endedAtMs: 9,
  });
  assert.equal((await readPages(log, cut.id, 50_000)).toString(), "unfinished");
  assert.equal((await log.find({ id: cut.id })).phase, "lost");
  assert.equal(await readFile(stray, "utf8"), "left alone");
  assert.equal((await stat(join(directory, "sandbox1", "0000000001.log"))).mode & 0o777, 0o600);
});

it("cut at every byte of its last record, a log has everything before it and takes more", async (context) => {
  const directory = await temporaryDirectory(context);
  await using scene = await open({ directory });
  const command = scene.begin();
  command.write("first ");
  await scene.logs.of("sandbox1").find({ id: command.id });
  const path = join(directory, "sandbox1", "0000000001.log");
  const { size: before } = await stat(path);
  command.write("second");
  await scene.logs.of("sandbox1").find({ id: command.id });
  const crashed = join(await temporaryDirectory(context), "crashed.log");
  await copyFile(path, crashed);
  const { size: after } = await stat(path);
  assert(after > before);

  for (let length = after; length >= 0; length -= 1) {
    const restarted = await temporaryDirectory(context);
    await mkdir(join(restarted, "sandbox1"));
    const torn = join(restarted, "sandbox1", "0000000001.log");
    await copyFile(crashed, torn);
    await truncate(torn, length);
    await using next = await open({ directory: restarted });
    const log = next.logs.of("sandbox1");
    const expected = length === after ? "first second" : length >= before ? "first " : undefined;
    if (expected !== undefined) {
      assert.equal((await readPages(log, command.id, 100)).toString(), expected, `cut to ${length} bytes`);
    }
    next.logs.check();
    if (length < after - 3 && length % 16 !== 0) continue;
    const more = next.begin();
    more.write("goes on");
    assert.equal((await readPages(log, more.id, 100)).toString(), "goes on", `cut to ${length} bytes`);
    assert.equal((await stat(torn)).size, length, "nothing is written after a torn record");
  }
});

/** A disk that a test can fill, block and free. */
class TroubledFiles implements LogFiles {
  trouble: "none" | "full" | "stuck" = "none";
  #unstick: (() => void)[] = [];

  free(): void {
    this.trouble = "none";
    for (const go of this.#unstick.splice(0)) go();
  }
  create(path: string): Promise<LogFile> {
    return this.#wrap(diskFiles.create(path));
  }
  replace(old: string, path: string): Promise<LogFile> {
    return this.#wrap(diskFiles.replace(old, path));
  }
  reopen(path: string, position: number): Promise<LogFile> {
    return this.#wrap(diskFiles.reopen(path, position));
  }
  remove(path: string): Promise<void> {
    return diskFiles.remove(path);
  }
  removeDirectory(path: string): Promise<void> {
    return diskFiles.removeDirectory(path);
  }
  async #wrap(opening: Promise<LogFile>): Promise<LogFile> {
    const file = await opening;
    return {
      append: async (parts) => {
        if (this.trouble === "stuck") await new Promise<void>((resolve) => this.#unstick.push(resolve));
        if (this.trouble === "full") {
          // Like a full disk, it takes the first part of a write.
          await file.append([Buffer.concat(parts).subarray(0, 20)]);
          throw new Error("ENOSPC: no space left on device, write");
        }
        await file.append(parts);
      },
      cutOff: () => file.cutOff(),
      close: () => file.close(),
    };
  }
}

it("a full disk costs output, never a command: it is reported, counted, and ends when there is room", async (context) => {
  const directory = await temporaryDirectory(context);
  const files = new TroubledFiles();
  await using scene = await open({ directory, files, settings: { retryInterval: "60ms", buffer: "64KiB" } });
  const log = scene.logs.of("sandbox1");
  const [command, ended] = [scene.begin(), scene.begin()];
  command.write("kept");
  ended.write("kept too");
  await log.find({ id: command.id });

  files.trouble = "full";
  await command.writeAll(Array.from({ length: 100 }, () => randomBytes(10 * KIB)));
  ended.end();
  await log.find({ id: command.id });
  assert.throws(() => scene.logs.check(), /output is not logged: ENOSPC/);
  assert((await scene.metric("failures_total")) >= 1);
  assert.equal((await readPages(log, command.id, 100, 0)).toString(), "kept");
  assert.equal((await log.find({ id: ended.id })).phase, "exited", "known although it cannot be written");

  files.free();
  await scene.recovery();
  const written = command.written.length;
  command.write("kept again");
  assert((await log.find({ id: command.id })).outputBytes === written + 10);
  scene.logs.check();
  const page = await log.page(command.id, { cursor: 4, limitBytes: 100 });
  assert.equal((await joined(page.pieces)).toString(), "kept again");
  assert.deepEqual([page.truncatedBefore, page.nextCursor], [written, written + 10]);
  assert.equal(await scene.metric("dropped_bytes_total"), 100 * 10 * KIB);
  await scene.logs.close();
  await using next = await open({ directory });
  assert.equal((await next.logs.of("sandbox1").find({ id: ended.id })).phase, "exited", "written late");
});

it("a hanging disk delays a command for a moment only, and nothing piles up", async (context) => {
  const directory = await temporaryDirectory(context);
  const files = new TroubledFiles();
  const settings = { stallTimeout: "80ms", buffer: "64KiB" };
  await using scene = await open({ directory, files, settings });
  const command = scene.begin();
  files.trouble = "stuck";
  const startMs = performance.now();
  await command.writeAll(Array.from({ length: 500 }, () => randomBytes(10 * KIB)));
  assert(performance.now() - startMs > 60, "it was held");
  assert.throws(() => scene.logs.check(), /no answer from the disk within 80 ms/);
  const log = scene.logs.of("sandbox1");
  assert.equal((await log.find({ id: command.id })).phase, "running", "readers do not wait either");
  files.free();
  await scene.recovery();
  command.write("the end");
  const offset = command.written.length - 7;
  const page = await log.page(command.id, { cursor: offset, limitBytes: 100 });
  assert.equal((await joined(page.pieces)).toString(), "the end");
});

it("without a writable directory commands run without a log, and the reason is reported", async () => {
  await using scene = await open({ directory: "/dev/null/logs" });
  assert.equal(scene.logs.begin({ id: "sandbox1", owner: "default" }, heading), undefined);
  assert.throws(() => scene.logs.check(), /output is not logged: ENOTDIR/);
  await assert.rejects(scene.logs.of("sandbox1").find({ pid: 1 }), { code: "not_found" });
});

it("switched off, nothing is recorded and nothing is wrong", async (context) => {
  const directory = await temporaryDirectory(context);
  await using scene = await open({ directory, settings: { enabled: false } });
  assert.equal(scene.logs.begin({ id: "sandbox1", owner: "default" }, heading), undefined);
  scene.logs.check();
  assert.deepEqual(await filesOf(directory), []);
});

it("closing writes what is left and leaves no timer and no open file", async (context) => {
  const directory = await temporaryDirectory(context);
  const clock = fakeClock();
  const files = countingFiles();
  await using scene = await open({ directory, clock, files });
  const command = scene.begin();
  command.write("last ");
  const other = scene.begin("sandbox2");
  other.write("x");
  await scene.logs.of("sandbox1").find({ id: command.id });
  await scene.logs.of("sandbox2").find({ id: other.id });
  assert.equal(files.open(), 2);
  await clock.advance(20_000);
  while (files.open() > 0) await sleep(1);
  assert.equal(files.open(), 0, "a file that nothing is written to is closed");
  command.write("words");
  other.write("y");
  await scene.logs.close();
  assert.equal(files.open(), 0);
  assert.equal(clock.pending, 0);
  await using next = await open({ directory });
  assert.equal((await readPages(next.logs.of("sandbox1"), command.id, 100)).toString(), "last words");
  assert.equal((await readPages(next.logs.of("sandbox2"), other.id, 100)).toString(), "xy");
});

const heading = { id: "x", pid: 1, path: "/bin/true", tag: undefined, startedAtMs: 0 };

function countingFiles(): LogFiles & { open(): number } {
  let open = 0;
  const counted = async (opening: Promise<LogFile>): Promise<LogFile> => {
    const file = await opening;
    open += 1;
    return {
      append: (parts) => file.append(parts),
      cutOff: () => file.cutOff(),
      close: async () => {
        open -= 1;
        await file.close();
      },
    };
  };
  return {
    open: () => open,
    create: (path) => counted(diskFiles.create(path)),
    replace: (old, path) => counted(diskFiles.replace(old, path)),
    reopen: (path, position) => counted(diskFiles.reopen(path, position)),
    remove: (path) => diskFiles.remove(path),
    removeDirectory: (path) => diskFiles.removeDirectory(path),
  };
}

async function open(options: Parameters<typeof openLogs>[0]) {
  const scene = await openLogs(options);
  return { ...scene, [Symbol.asyncDispose]: () => scene.logs.close() };
}
