import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { FileNotFoundError, FilesystemEventType, FileType, type Sandbox } from "e2b";

const MIB = 2 ** 20;
const STREAM_BYTES = 24 * MIB;

/** Cases for `sandbox.files`, for each way in which the SDK reaches the server. Call it inside a `describe`. */
export function fileScenarios(sandbox: () => Sandbox): void {
  it("reads back what was written, text and bytes, and an empty file", async () => {
    const { files } = sandbox();
    const text = "naïve ✓\nsecond line";
    const written = await files.write("notes/today.txt", text);
    assert.equal(written.name, "today.txt");
    assert.ok(written.path.endsWith("/notes/today.txt"), written.path);
    assert.equal(await files.read("notes/today.txt"), text);
    assert.equal(await files.read(written.path), text);

    const bytes = randomBytes(100_000);
    await files.write("bytes.bin", new Blob([bytes]));
    assert.deepEqual(Buffer.from(await files.read("bytes.bin", { format: "bytes" })), bytes);

    await files.write("empty.txt", "");
    assert.equal(await files.read("empty.txt"), "");
  });

  it("writes several files in one go, and what a command sees is the same", async () => {
    const { files, commands } = sandbox();
    const written = await files.write([
      { path: "several/a.txt", data: "A" },
      { path: "several/b.txt", data: "BB" },
    ]);
    assert.deepEqual(
      written.map(({ name }) => name),
      ["a.txt", "b.txt"],
    );
    assert.equal((await commands.run("cat several/a.txt several/b.txt")).stdout, "ABB");
    await commands.run("printf changed > several/a.txt");
    assert.equal(await files.read("several/a.txt"), "changed");
  });

  it("lists a directory as deep as it is asked to", async () => {
    const { files } = sandbox();
    await files.write("tree/one/two/leaf.txt", "leaf");
    await files.write("tree/top.txt", "123");
    const shallow = await files.list("tree");
    assert.deepEqual(
      shallow.map(({ name, type }) => [name, type]),
      [
        ["one", FileType.DIR],
        ["top.txt", FileType.FILE],
      ],
    );
    assert.equal(shallow[1]?.size, 3);
    const deep = await files.list("tree", { depth: 3 });
    assert.deepEqual(
      deep.map(({ name }) => name),
      ["one", "two", "leaf.txt", "top.txt"],
    );
    await assert.rejects(files.list("no-such-directory"), FileNotFoundError);
  });

  it("knows what exists", async () => {
    const { files } = sandbox();
    await files.write("present.txt", "x");
    assert.equal(await files.exists("present.txt"), true);
    assert.equal(await files.exists("absent.txt"), false);
    const info = await files.getInfo("present.txt");
    assert.equal(info.type, FileType.FILE);
    assert.equal(info.size, 1);
    assert.equal(info.permissions, "-rw-r--r--");
    await assert.rejects(files.read("absent.txt"), FileNotFoundError);
  });

  it("makes a directory once", async () => {
    const { files } = sandbox();
    assert.equal(await files.makeDir("made/below"), true);
    assert.equal(await files.makeDir("made/below"), false);
    assert.equal((await files.getInfo("made/below")).type, FileType.DIR);
  });

  it("renames", async () => {
    const { files } = sandbox();
    await files.write("before.txt", "moved");
    const entry = await files.rename("before.txt", "elsewhere/after.txt");
    assert.equal(entry.name, "after.txt");
    assert.equal(await files.exists("before.txt"), false);
    assert.equal(await files.read("elsewhere/after.txt"), "moved");
    await assert.rejects(files.rename("before.txt", "x"), FileNotFoundError);
  });

  it("removes files and trees", async () => {
    const { files } = sandbox();
    await files.write("doomed/inner/file.txt", "x");
    await files.remove("doomed");
    assert.equal(await files.exists("doomed"), false);
  });

  it(`streams ${STREAM_BYTES / MIB} MiB in and out`, async () => {
    const { files, commands } = sandbox();
    const sent = createHash("sha256");
    let leftBytes = STREAM_BYTES;
    const source = new ReadableStream<Uint8Array>({
      pull(controller) {
        if (leftBytes === 0) return controller.close();
        const chunk = randomBytes(Math.min(256 * 1024, leftBytes));
        leftBytes -= chunk.length;
        sent.update(chunk);
        controller.enqueue(chunk);
      },
    });
    // The SDK's types are a browser's, whose stream differs from Node's in name alone.
    await files.write("large.bin", source as never);
    const digest = sent.digest("hex");
    assert.equal((await commands.run("sha256sum < large.bin | cut -d' ' -f1")).stdout.trim(), digest);

    const received = createHash("sha256");
    let receivedBytes = 0;
    for await (const chunk of (await files.read("large.bin", {
      format: "stream",
    })) as unknown as AsyncIterable<Uint8Array>) {
      received.update(chunk);
      receivedBytes += chunk.length;
    }
    assert.equal(receivedBytes, STREAM_BYTES);
    assert.equal(received.digest("hex"), digest);
    await files.remove("large.bin");
  });

  it("reports what happens in a watched directory until the watch is stopped", async () => {
    const { files } = sandbox();
    await files.makeDir("watched");
    const seen: string[] = [];
    const exits: unknown[] = [];
    const watch = await files.watchDir("watched", ({ name, type }) => void seen.push(`${type} ${name}`), {
      onExit: (error) => void exits.push(error),
    });
    await files.write("watched/new.txt", "hello");
    await eventually("create and write", () =>
      [FilesystemEventType.CREATE, FilesystemEventType.WRITE].every((type) =>
        seen.includes(`${type} new.txt`),
      ),
    );
    await files.remove("watched/new.txt");
    await eventually("remove", () => seen.includes(`${FilesystemEventType.REMOVE} new.txt`));
    await watch.stop();
    const before = seen.length;
    await files.write("watched/later.txt", "unseen");
    await eventually("onExit", () => exits.length === 1);
    assert.equal(seen.length, before);
    await assert.rejects(
      files.watchDir("not-there", () => undefined),
      FileNotFoundError,
    );
  });

  it("reports what happens below, where it is asked to", async () => {
    const { files } = sandbox();
    await files.makeDir("deeply");
    const seen: string[] = [];
    const watch = await files.watchDir("deeply", ({ name, type }) => void seen.push(`${type} ${name}`), {
      recursive: true,
    });
    await files.write("deeply/a/b/leaf.txt", "x");
    await eventually("create of the leaf", () => seen.includes(`${FilesystemEventType.CREATE} a/b/leaf.txt`));
    await watch.stop();
  });
}
