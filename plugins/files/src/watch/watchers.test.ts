import assert from "node:assert/strict";
import { appendFile, chmod, link, mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";
import { memoryBackend } from "@coppice/core/testing";
import { type FilesServer, type StreamFrame, startFilesServer } from "../testing/files-server.js";

let files: FilesServer;
before(async () => {
  files = await startFilesServer({
    settings: { maxWatchersPerSandbox: 4, maxBufferedEvents: 20, keepalive: "200ms" },
  });
});
after(async () => files[Symbol.asyncDispose]());

let directories = 0;
/** A fresh directory: its path inside, and on the host. */
async function newDirectory(): Promise<{ readonly path: string; readonly host: string }> {
  const path = `/home/user/watched-${directories++}`;
  await files.call("MakeDir", { path });
  return { path, host: await files.hostPath(path) };
}

async function createWatcher(body: object): Promise<string> {
  const { status, body: answer } = await files.call("CreateWatcher", body);
  assert.equal(status, 200, JSON.stringify(answer));
  assert.match(answer.watcherId, /^w[a-z0-9]{20}$/);
  return answer.watcherId;
}

interface WireEvent {
  readonly name: string;
  readonly type: string;
  readonly entry?: { readonly path: string; readonly size?: string };
}

async function takeEvents(watcherId: string): Promise<readonly WireEvent[]> {
  return (await files.call("GetWatcherEvents", { watcherId })).body.events ?? [];
}

/** Polls until events are there and no more come. */
async function settledEvents(watcherId: string): Promise<readonly string[]> {
  const events: WireEvent[] = [];
  for (let quiet = 0; quiet < 4;) {
    await delay(40);
    const more = await takeEvents(watcherId);
    events.push(...more);
    quiet = more.length === 0 && events.length > 0 ? quiet + 1 : 0;
  }
  // A write in a new directory may be reported twice: by the scan of the directory, and by its own event.
  return events
    .map(told)
    .filter((event, index, all) => !event.startsWith("WRITE") || event !== all[index - 1]);
}

const told = ({ name, type }: WireEvent): string => `${type.replace("EVENT_TYPE_", "")} ${name}`;
const removeWatcher = (watcherId: string) => files.call("RemoveWatcher", { watcherId });

it("A new file by upload is CREATE, CHMOD, WRITE the moment the upload is answered, and never more", async () => {
  for (const recursive of [false, true]) {
    const { path } = await newDirectory();
    const id = await createWatcher({ path, recursive });
    await files.put(`${path}/new.txt`, "content");
    assert.deepEqual((await takeEvents(id)).map(told), ["CREATE new.txt", "CHMOD new.txt", "WRITE new.txt"]);
    await delay(150);
    assert.deepEqual(await takeEvents(id), [], "the host's own news of it is not told again");

    await files.put(`${path}/new.txt`, "other content");
    assert.deepEqual((await takeEvents(id)).map(told), ["WRITE new.txt"]);
    await files.put(`${path}/large.bin`, new Uint8Array(2 ** 20));
    const large = ["CREATE large.bin", "CHMOD large.bin", "WRITE large.bin"];
    assert.deepEqual((await takeEvents(id)).map(told), large);
    await files.put(`${path}/large.bin`, new Uint8Array(2 ** 20));
    assert.deepEqual((await takeEvents(id)).map(told), large, "another file in its place");
    await files.put(`${path}/a/b/c.txt`, "in new directories");
    const made = recursive
      ? ["CREATE a", "CREATE a/b", "CREATE a/b/c.txt", "WRITE a/b/c.txt", "CHMOD a"]
      : ["CREATE a", "CHMOD a"];
    assert.deepEqual((await takeEvents(id)).map(told), made);
    await delay(150);
    assert.deepEqual(await takeEvents(id), []);
    await removeWatcher(id);
  }
});

it("What processes do is told as it can be seen from the host", async () => {
  const { path, host } = await newDirectory();
  await writeFile(join(host, "old"), "x");
  const id = await createWatcher({ path });
  const after = async (act: () => Promise<unknown>) => {
    await act();
    return settledEvents(id);
  };
  assert.deepEqual(await after(() => writeFile(join(host, "new"), "content")), ["CREATE new", "WRITE new"]);
  assert.deepEqual(await after(() => appendFile(join(host, "old"), "more")), ["WRITE old"]);
  assert.deepEqual(await after(() => chmod(join(host, "old"), 0o600)), ["CHMOD old"]);
  assert.deepEqual(await after(() => rename(join(host, "old"), join(host, "moved"))), [
    "RENAME old",
    "CREATE moved",
  ]);
  // A new file that gets the inode of a removed one is not reported as a move.
  const replace = async () => {
    await rm(join(host, "moved"));
    await writeFile(join(host, "other"), "");
  };
  assert.deepEqual((await after(replace)).toSorted(), ["CREATE other", "REMOVE moved"]);
  assert.deepEqual(await after(() => link(join(host, "other"), join(host, "moved"))), ["CREATE moved"]);
  assert.deepEqual(await after(() => rm(join(host, "moved"))), ["REMOVE moved"]);
  assert.deepEqual(await after(() => mkdir(join(host, "dir"))), ["CREATE dir"]);
  assert.deepEqual(await after(() => chmod(join(host, "dir"), 0o700)), ["CHMOD dir"]);
  await writeFile(join(host, "full"), "content");
  assert.deepEqual(await settledEvents(id), ["CREATE full", "WRITE full"]);
  assert.deepEqual(await after(() => link(join(host, "full"), join(host, "also"))), ["CREATE also"]);
  await readFile(join(host, "full"));
  assert.deepEqual(await after(() => chmod(join(host, "full"), 0o600)), ["CHMOD full"]);
  await writeFile(join(host, "dir/below"), "not told: the watch is not recursive");
  assert.deepEqual(await after(() => rm(join(host, "new"))), ["REMOVE new"]);
  await removeWatcher(id);
});

it("A recursive watch sees what is made right after its directory", async () => {
  const { path, host } = await newDirectory();
  const id = await createWatcher({ path, recursive: true });
  await mkdir(join(host, "a/b"), { recursive: true });
  await writeFile(join(host, "a/b/c"), "x");
  const events = await settledEvents(id);
  for (const expected of ["CREATE a", "CREATE a/b", "CREATE a/b/c", "WRITE a/b/c"]) {
    assert.ok(events.includes(expected), `${expected} in ${events.join(", ")}`);
  }
  await files.put(`${path}/x/y.txt`, "by upload");
  await files.call("MakeDir", { path: `${path}/m/n` });
  const expected = [
    "CREATE x",
    "CREATE x/y.txt",
    "WRITE x/y.txt",
    "CHMOD x",
    "CREATE m",
    "CREATE m/n",
    "CHMOD m",
  ];
  assert.deepEqual((await takeEvents(id)).map(told), expected);
  await delay(150);
  assert.deepEqual(await takeEvents(id), []);
  await removeWatcher(id);
});

it("A move through the API is RENAME of the old name and CREATE of the new one", async () => {
  const { path, host } = await newDirectory();
  await mkdir(join(host, "tree/deep"), { recursive: true });
  await writeFile(join(host, "tree/deep/leaf"), "x");
  const id = await createWatcher({ path, recursive: true });
  await files.call("Move", { source: `${path}/tree`, destination: `${path}/wood` });
  assert.deepEqual((await takeEvents(id)).map(told), ["RENAME tree", "CREATE wood"]);
  await delay(150);
  assert.deepEqual(await takeEvents(id), []);
  await appendFile(join(host, "wood/deep/leaf"), "y");
  assert.deepEqual(await settledEvents(id), ["WRITE wood/deep/leaf"]);
  await files.call("Move", { source: `${path}/wood`, destination: "/tmp/wood-elsewhere" });
  await delay(150);
  assert.deepEqual((await takeEvents(id)).map(told), ["RENAME wood"]);
  await removeWatcher(id);
});

it("A tree that a process moves is told by its name alone, and is known below the new one", async () => {
  const { path, host } = await newDirectory();
  await mkdir(join(host, "tree/deep"), { recursive: true });
  await writeFile(join(host, "tree/deep/leaf"), "x");
  const id = await createWatcher({ path, recursive: true });
  await rename(join(host, "tree"), join(host, "wood"));
  assert.deepEqual(await settledEvents(id), ["RENAME tree", "CREATE wood"]);
  await appendFile(join(host, "wood/deep/leaf"), "y");
  assert.deepEqual(await settledEvents(id), ["WRITE wood/deep/leaf"]);
  await rename(join(host, "wood/deep/leaf"), join(host, "leaf"));
  assert.deepEqual(await settledEvents(id), ["RENAME wood/deep/leaf", "CREATE leaf"]);
  await rename(join(host, "wood"), join(host, "../elsewhere"));
  const gone = await settledEvents(id);
  assert.deepEqual(gone, ["RENAME wood"]);
  await rm(join(host, "../elsewhere"), { recursive: true });
  await removeWatcher(id);
});

it("A directory that is removed and made again is watched again, with all that is below it", async () => {
  const { path, host } = await newDirectory();
  const id = await createWatcher({ path, recursive: true });
  for (let round = 0; round < 3; round++) {
    await mkdir(join(host, "a/b"), { recursive: true });
    await writeFile(join(host, "a/b/leaf"), "x");
    const made = ["CREATE a", "CREATE a/b", "CREATE a/b/leaf", "WRITE a/b/leaf"];
    assert.deepEqual(await settledEvents(id), made, `round ${round}`);
    await rm(join(host, "a"), { recursive: true });
    assert.deepEqual(
      await settledEvents(id),
      ["REMOVE a/b/leaf", "REMOVE a/b", "REMOVE a"],
      `round ${round}`,
    );
  }
  await mkdir(join(host, "again"));
  await settledEvents(id);
  // The directory is back before a watcher can notice its absence.
  await rm(join(host, "again"), { recursive: true });
  await mkdir(join(host, "again"));
  await settledEvents(id);
  await writeFile(join(host, "again/leaf"), "x");
  assert.deepEqual(await settledEvents(id), ["CREATE again/leaf", "WRITE again/leaf"]);
  await removeWatcher(id);
});

it("Without an agent the server watches the directory on the host", async () => {
  await using own = await startFilesServer();
  Object.defineProperty(own.sandbox.runtime.files, "watch", { value: undefined });
  assert.equal((await own.call("MakeDir", { path: "/home/user/seen" })).status, 200);
  const { body } = await own.call("CreateWatcher", { path: "/home/user/seen", recursive: true });
  await own.put("/home/user/seen/made/file", "content");
  const events: WireEvent[] = [];
  while (events.length < 3) {
    await delay(20);
    events.push(...((await own.call("GetWatcherEvents", body)).body.events ?? []));
  }
  assert.deepEqual(events.map(told), ["CREATE made", "CREATE made/file", "WRITE made/file"]);
});

it("An upload that fails is no event", async () => {
  const { path } = await newDirectory();
  const id = await createWatcher({ path });
  const upload = await files.upload(`/files?path=${path}/never`, {
    "content-type": "application/octet-stream",
  });
  await upload.send(new Uint8Array(2 ** 20));
  await delay(50);
  upload.abandon();
  await delay(150);
  assert.deepEqual(await takeEvents(id), []);
  await removeWatcher(id);
});

it("Entries come along when they were asked for", async () => {
  const { path, host } = await newDirectory();
  const id = await createWatcher({ path, includeEntry: true });
  await files.put(`${path}/e.txt`, "12345");
  const [created] = await takeEvents(id);
  assert.equal(created?.entry?.path, `${path}/e.txt`);
  assert.equal(created.entry.size, "5");
  await rm(join(host, "e.txt"));
  let removed: WireEvent | undefined;
  while (removed === undefined) {
    await delay(20);
    [removed] = await takeEvents(id);
  }
  assert.equal(told(removed), "REMOVE e.txt");
  assert.equal(removed.entry, undefined);
  await removeWatcher(id);
});

it("What cannot be watched, and watchers that are not there, are said in envd's words", async () => {
  await files.put("/tmp/plain", "x");
  const refusals = [
    ["CreateWatcher", { path: "/nope" }, 404, "not_found", /^path \/nope not found: /],
    [
      "CreateWatcher",
      { path: "/tmp/plain" },
      400,
      "invalid_argument",
      /^path \/tmp\/plain not a directory: /,
    ],
    ["GetWatcherEvents", { watcherId: "w1" }, 404, "not_found", /^watcher with id w1 not found$/],
    ["RemoveWatcher", { watcherId: "__proto__" }, 404, "not_found", /^watcher with id __proto__ not found$/],
  ] as const;
  for (const [method, body, status, code, message] of refusals) {
    const answer = await files.call(method, body);
    assert.equal(answer.status, status, method);
    assert.equal(answer.body.code, code);
    assert.match(answer.body.message, message);
  }
});

it("Watches are limited in number and events, and say so", async () => {
  const { path, host } = await newDirectory();
  const ids: string[] = [];
  for (let index = 0; index < 4; index++) ids.push(await createWatcher({ path }));
  const fifth = await files.call("CreateWatcher", { path });
  assert.deepEqual(fifth.body, { code: "resource_exhausted", message: "a sandbox can have 4 watches" });
  for (const id of ids.slice(1)) await removeWatcher(id);

  for (let index = 0; index < 22; index++) await writeFile(join(host, `f${index}`), "");
  await delay(300);
  const id = ids[0] ?? "";
  assert.equal((await takeEvents(id)).length, 20, "what was kept is still delivered");
  const lost = await files.call("GetWatcherEvents", { watcherId: id });
  assert.equal(lost.status, 429);
  assert.match(lost.body.message, /^events were lost: /);
  await removeWatcher(id);

  assert.equal((await removeWatcher(await createWatcher({ path: "/tmp" }))).status, 200);
});

it("WatchDir starts with start, streams events, keeps alive, and ends at its deadline", async () => {
  const { path, host } = await newDirectory();
  const frames: StreamFrame[] = [];
  for await (const frame of files.watch({ path }, { headers: { "connect-timeout-ms": "700" } })) {
    if (frames.push(frame) === 1) await writeFile(join(host, "a"), "x");
  }
  assert.deepEqual(frames[0]?.message, { start: {} });
  assert.deepEqual(
    frames.filter(({ message }) => message.filesystem).map(({ message }) => told(message.filesystem)),
    ["CREATE a", "WRITE a"],
  );
  const keepalives = frames.filter(({ message }) => message.keepalive).length;
  assert.ok(keepalives >= 1 && keepalives <= 3, `${keepalives} keepalives`);
  const end = frames.at(-1);
  assert.equal(end?.isEnd, true);
  assert.equal(end.message.error.code, "deadline_exceeded");

  const refused: StreamFrame[] = [];
  for await (const frame of files.watch({ path: "/nope" })) refused.push(frame);
  assert.equal(refused.length, 1);
  assert.equal(refused[0]?.message.error.code, "not_found");
});

it("A client that leaves gives its watch back", async () => {
  const { path } = await newDirectory();
  for (let round = 0; round < 8; round++) {
    const leaving = new AbortController();
    const stream = files.watch({ path }, { signal: leaving.signal });
    assert.deepEqual((await stream.next()).value?.message, { start: {} }, `round ${round}`);
    leaving.abort();
    await assert.rejects(stream.next());
    await delay(50);
  }
});

it("Watches end with their sandbox, and the server stops without them", async () => {
  await using own = await startFilesServer();
  const created = await own.call("CreateWatcher", { path: "~" });
  const stream = own.watch({ path: "~", recursive: true });
  assert.deepEqual((await stream.next()).value?.message, { start: {} });
  await own.server.sandboxes.kill(own.sandbox.record.id);
  await assert.rejects(async () => {
    for await (const { message } of stream) if (message.error) throw new Error(message.error.code);
  });
  assert.equal((await own.call("GetWatcherEvents", created.body)).status, 502);
});

it("A backend that watches by itself is asked to, and its errors end the watch", async () => {
  await using own = await startFilesServer({ backend: memoryBackend() });
  assert.deepEqual((await own.call("CreateWatcher", { path: "~" })).body, {
    code: "unimplemented",
    message: "the backend of this sandbox cannot watch directories",
  });

  const script = Promise.withResolvers<void>();
  let isStopped = false;
  own.sandbox.runtime.files.watch = async (path, { recursive, signal }) => {
    assert.deepEqual([path, recursive], ["/home/user", true]);
    signal.addEventListener("abort", () => {
      isStopped = true;
    });
    return (async function* (): AsyncGenerator<WatchEvent> {
      yield { name: "a/b", type: "rename" };
      await script.promise;
      throw new SandboxError("events_lost", "the queue of the kernel overflowed");
    })();
  };
  const { watcherId } = (await own.call("CreateWatcher", { path: "~", recursive: true })).body;
  await delay(20);
  const first = await own.call("GetWatcherEvents", { watcherId });
  assert.deepEqual(first.body, { events: [{ name: "a/b", type: "EVENT_TYPE_RENAME" }] });
  script.resolve();
  await delay(20);
  const broken = await own.call("GetWatcherEvents", { watcherId });
  assert.deepEqual(broken.body, {
    code: "resource_exhausted",
    message: "the queue of the kernel overflowed",
  });
  assert.equal((await own.call("RemoveWatcher", { watcherId })).status, 200);
  assert.equal(isStopped, true);
});
