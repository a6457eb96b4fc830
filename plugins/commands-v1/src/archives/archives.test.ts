import assert from "node:assert/strict";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { type LiveSandbox, Spool } from "@coppice/core";
import type { Command, Process } from "@coppice/core/backend";
import { SeededRandom, startTestServer, type TestServer } from "@coppice/core/testing";
import commands from "@coppice/plugin-commands";
import localProcess from "@coppice/plugin-local-process";
import { extract, type Headers, pack } from "tar-stream";
import commandsV1 from "../index.js";
import { exportArchive } from "./archive-routes.js";
import { importArchive, SafeEntries } from "./import-archive.js";

interface Answer {
  readonly imported: number;
  readonly bytes: number;
  readonly dest: string;
  readonly code: string;
}

type Entry = readonly [headers: Headers, content?: string];

/** An archive of entries, with whatever names they have. */
async function archiveOf(entries: readonly Entry[]): Promise<Buffer> {
  const packed = pack();
  for (const [headers, content] of entries) packed.entry(headers, content ?? "");
  packed.finalize();
  return buffer(packed);
}

/** A header and its contents as bytes, with whatever is in its fields. */
function tarFile(
  name: string,
  content: string,
  { type = "0", link = "", mtime = "0", size = content.length.toString(8) } = {},
): Buffer {
  const header = Buffer.alloc(512);
  for (const [at, text] of [
    [0, name],
    [100, "644"],
    [124, size],
    [136, mtime],
    [148, " ".repeat(8)],
    [156, type],
    [157, link],
    [257, "ustar\x0000"],
  ] as const) {
    header.write(text, at, "latin1");
  }
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return Buffer.concat([header, Buffer.from(content), Buffer.alloc(-content.length & 511)]);
}

/** Names and contents of an archive. */
async function contentsOf(archive: Uint8Array): Promise<Record<string, string>> {
  const found: Record<string, string> = {};
  const reader = extract();
  reader.end(Buffer.from(archive));
  for await (const entry of reader) {
    const { name, type, linkname } = entry.header;
    const content = await buffer(entry);
    found[name] = type === "symlink" ? `-> ${linkname}` : type === "directory" ? "/" : content.toString();
  }
  return found;
}

describe("tar archives of /v1", { timeout: 120_000 }, () => {
  let server: TestServer;
  let sandbox: LiveSandbox;
  let dataDir: string;

  before(async () => {
    dataDir = await mkdtemp(join(tmpdir(), "coppice-v1-archives-"));
    server = await startTestServer({
      dataDir,
      plugins: [
        [commands, {}],
        [commandsV1, { maxImport: "8MiB", maxImportEntries: 50 }],
        [localProcess, {}],
      ],
    });
    sandbox = await server.sandboxes.create({ template: "base", timeoutMs: 300_000, secure: false });
  });
  after(async () => {
    await server.stop();
    await rm(dataDir, { recursive: true });
  });

  const post = (verb: string, init: RequestInit) =>
    fetch(`${server.url}/v1/sandboxes/${sandbox.record.id}/files/${verb}`, { method: "POST", ...init });
  const importInto = async (dest: string, tarball: Uint8Array) => {
    const form = new FormData();
    form.append("dest", dest);
    form.append("tarball", new Blob([tarball]), "files.tar");
    const response = await post("import", { body: form });
    return { status: response.status, body: (await response.json()) as Answer };
  };
  const exportFrom = async (body: object) => {
    const response = await post("export", { body: JSON.stringify(body) });
    return { response, bytes: new Uint8Array(await response.arrayBuffer()) };
  };
  const exists = (path: string) =>
    sandbox.runtime.files.stat(path).then(
      () => true,
      () => false,
    );

  it("bring files, modes and links in, and out again", async () => {
    const tarball = await archiveOf([
      [{ name: "a/", type: "directory" }],
      [{ name: "a/script", mode: 0o755 }, "#!/bin/sh\n"],
      [{ name: "a/link", type: "symlink", linkname: "script" }],
      [{ name: "a/up", type: "symlink", linkname: "../b.txt" }],
      [{ name: "b.txt", mode: 0o4644, uid: 0 }, "é".repeat(100)],
      [{ name: "c.txt", type: "link", linkname: "b.txt" }],
      [{ name: `${"long/".repeat(40)}name` }, "deep"],
    ]);
    const { status, body } = await importInto("/work/in", tarball);
    assert.deepEqual([status, body], [200, { imported: 6, bytes: 214, dest: "/work/in" }]);
    assert.equal((await sandbox.runtime.files.stat("/work/in/a/script")).mode, 0o755);
    assert.equal((await sandbox.runtime.files.stat("/work/in/b.txt")).mode, 0o644);
    const { response, bytes } = await exportFrom({ src_dir: "/work/in", paths: ["a", "b.txt"] });
    assert.equal(response.headers.get("content-type"), "application/x-tar");
    assert.ok(response.headers.get("content-disposition")?.includes(`${sandbox.record.id}.tar`));
    assert.deepEqual(await contentsOf(bytes), {
      "a/": "/",
      "a/script": "#!/bin/sh\n",
      "a/link": "-> script",
      "a/up": "-> ../b.txt",
      "b.txt": "é".repeat(100),
    });
    const whole = await contentsOf((await exportFrom({ src_dir: "/work" })).bytes);
    assert.equal(whole[`./in/${"long/".repeat(40)}name`], "deep");
  });

  it("are refused as a whole when an entry would leave the directory", async () => {
    const good: Entry = [{ name: "good" }, "good"];
    const hostile: readonly (readonly Entry[])[] = [
      [[{ name: "/etc/bad" }, "x"]],
      [[{ name: "../bad" }, "x"]],
      [[{ name: "a/../../bad" }, "x"]],
      [[{ name: "l", type: "symlink", linkname: "/etc" }]],
      [[{ name: "l", type: "symlink", linkname: "../x" }]],
      [[{ name: "l", type: "symlink", linkname: "a/../../x" }]],
      [[{ name: "a/l", type: "symlink", linkname: "../../x" }]],
      [[{ name: "h", type: "link", linkname: "/etc/passwd" }]],
      [[{ name: "h", type: "link", linkname: "../passwd" }]],
      [[{ name: "s", type: "symlink", linkname: "." }], [{ name: "s/q", type: "symlink", linkname: "../x" }]],
      [[{ name: "s", type: "symlink", linkname: "." }], [{ name: "q", type: "symlink", linkname: "s/../x" }]],
      [[{ name: "s", type: "symlink", linkname: "d" }], [{ name: "s/bad" }, "x"]],
      [[{ name: "d/x" }, "x"], [{ name: "d", type: "symlink", linkname: "e" }]],
      [[{ name: "d/s", type: "symlink", linkname: ".." }], [{ name: "h", type: "link", linkname: "d/s" }]],
      [
        [{ name: "d/s", type: "symlink", linkname: "." }],
        [{ name: "h", type: "link", linkname: "d/s" }],
        [{ name: "h/x" }, "x"],
      ],
      [[{ name: "dev", type: "block-device", devmajor: 1, devminor: 3 }]],
      [[{ name: "dev", type: "character-device", devmajor: 1, devminor: 3 }]],
      [[{ name: "pipe", type: "fifo" }]],
      Array.from({ length: 60 }, (_, index): Entry => [{ name: `f${index}` }, ""]),
    ];
    for (const entries of hostile) {
      const { status, body } = await importInto("/refused", await archiveOf([good, ...entries]));
      assert.deepEqual([status, body.code], [400, "archive_unsafe"], JSON.stringify(entries[0]));
    }
    assert.equal(await exists("/refused"), false);
  });

  it("are refused when they are broken or too large, and leave nothing on the host", async () => {
    const good = await archiveOf([[{ name: "a" }, "x".repeat(5_000)]]);
    const header = Buffer.from(good.subarray(0, 512));
    const longHeader = Buffer.from(header);
    // An extended header of 7 MiB, which a parser would keep in memory.
    longHeader.write("x", 156);
    longHeader.write("33400000000", 124);
    longHeader.write("        ", 148);
    const sum = longHeader.reduce((total, byte) => total + byte, 0);
    longHeader.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
    const random = new SeededRandom(16);
    const broken = [
      Buffer.alloc(0),
      Buffer.from("no archive at all".repeat(100)),
      good.subarray(0, 2_000),
      Buffer.concat([longHeader, Buffer.alloc(7 * 2 ** 20)]),
      Buffer.concat([good.subarray(0, -1024), random.bytes(1024)]),
      await archiveOf([[{ name: "big" }, "x".repeat(9 * 2 ** 20)]]),
    ];
    for (const [index, tarball] of broken.entries()) {
      const { status, body } = await importInto("/refused", tarball);
      assert.ok(status === 400 || status === 413, `${index}: ${status} ${JSON.stringify(body)}`);
    }
    assert.equal(await exists("/refused"), false);
    const noDest = new FormData();
    noDest.append("tarball", new Blob([good]), "files.tar");
    for (const init of [{ body: noDest }, { body: new FormData() }, { body: "{}" }, {}]) {
      assert.equal((await post("import", init)).status, 400);
    }
    const spool = join(dataDir, "commands-v1", "spool");
    assert.deepEqual(await readdir(spool), []);
  });

  it("are imported with any time, and refused where readers of archives disagree", async () => {
    const early = new Date("1960-01-01");
    const late = new Date("2040-01-01");
    const tarball = Buffer.concat([
      tarFile("early", "", { mtime: "\xff".repeat(8) + "\xed\x30\x08\x80" }),
      tarFile("late", "", { mtime: "20352477200" }),
    ]);
    assert.equal((await importInto("/times", tarball)).status, 200);
    for (const [name, time] of [
      ["early", early],
      ["late", late],
    ] as const) {
      const { modifiedAtMs } = await sandbox.runtime.files.stat(`/times/${name}`);
      assert.ok(Math.abs(modifiedAtMs - time.getTime()) < 1_000, `${name}: ${modifiedAtMs}`);
    }
    const refused: Record<string, readonly Buffer[]> = {
      "a directory with contents": [tarFile("d/", "abc", { type: "5" })],
      "a hard link with contents": [tarFile("a", "abc"), tarFile("h", "abc", { type: "1", link: "a" })],
      "a symbolic link with contents": [tarFile("l", "abc", { type: "2", link: "a" })],
      "a negative size": [tarFile("n", "abc", { size: "\xff".repeat(12) })],
      "an endless size": [tarFile("n", "abc", { size: `\x80${"\xff".repeat(11)}` })],
      "a size in no digits": [tarFile("n", "abc", { size: "abc" })],
      "a negative size in an extended header": [
        tarFile("x", "11 size=-5\n", { type: "x" }),
        tarFile("n", "abc"),
      ],
      "a record longer than its header": [tarFile("x", "99 path=a\n", { type: "x" }), tarFile("n", "abc")],
      "a record of a negative length": [tarFile("x", "-9 path=a\n", { type: "x" }), tarFile("n", "abc")],
      "a name for all entries": [tarFile("x", "9 path=a\n", { type: "g" }), tarFile("n", "abc")],
      "a sparse file": [tarFile("x", "22 GNU.sparse.major=1\n", { type: "x" }), tarFile("n", "abc")],
      "a name that is not UTF-8": [tarFile("caf\xe9", "abc")],
      "no name": [tarFile("", "abc")],
      "many small records": [tarFile("x", "6 a=b\n".repeat(2_000), { type: "x" }), tarFile("n", "abc")],
      "many directories in one name": [
        tarFile("x", `1010 path=${"d/".repeat(500)}\n`, { type: "x" }),
        tarFile("n", "abc"),
      ],
    };
    for (const [what, parts] of Object.entries(refused)) {
      const { status, body } = await importInto("/disagree", Buffer.concat(parts));
      assert.equal(status, 400, what);
      assert.match(body.code, /^archive_(invalid|unsafe)$/, what);
    }
    assert.equal(await exists("/disagree"), false);
  });

  it("end with their client, whatever the sandbox has for tar(1)", async () => {
    const directory = join(dataDir, "hostile");
    const spool = new Spool({ directory: () => directory, maxBytes: 2 ** 20 });
    const tarball = await archiveOf([[{ name: "a" }, "x".repeat(500_000)]]);
    const programs = ["exec sleep 60", "yes", "yes >&2", "sleep 60 & echo started", "exec cat >/dev/zero"];
    for (const program of programs) {
      for (const isExport of [false, true]) {
        const client = new AbortController();
        const started = Promise.withResolvers<Process>();
        const runtime: LiveSandbox["runtime"] = Object.create(sandbox.runtime, {
          files: { value: sandbox.runtime.files },
          user: { value: () => sandbox.runtime.user() },
          spawn: {
            value: async (command: Command) => {
              const { label: _, ...rest } = command;
              const tar = await sandbox.runtime.spawn({ ...rest, path: "/bin/sh", args: ["-c", program] });
              started.resolve(tar);
              return tar;
            },
          },
        });
        const hostile: LiveSandbox = Object.create(sandbox, { runtime: { value: runtime } });
        const { signal } = client;
        const done = isExport
          ? (async () => {
              const options = { sourceDirectory: "/work", paths: ["."], signal };
              for await (const _ of await exportArchive(hostile, options));
            })()
          : importArchive(hostile, {
              destination: "/work/in",
              tarball: chunks([tarball.toString("latin1")]),
              spool,
              tenant: "acme",
              maxBytes: 2 ** 20,
              maxEntries: 10,
              signal,
            });
        const settled = done.then(
          () => "done",
          () => "gone",
        );
        const tar = await started.promise;
        await delay(100);
        client.abort(new Error("the client is gone"));
        assert.match(await settled, program.startsWith("exec cat") ? /gone|done/ : /gone/, program);
        await tar.exit;
      }
    }
    assert.deepEqual(await readdir(directory), []);
    // Two archives have no room together.
    await using first = await spool.open();
    await using second = await spool.open();
    await first.write(Buffer.alloc(700_000));
    await assert.rejects(second.write(Buffer.alloc(700_000)), { code: "unavailable" });
    await first[Symbol.asyncDispose]();
    await second.write(Buffer.alloc(700_000));
  });

  it("are exported from paths that exist, and from nothing else", async () => {
    await sandbox.runtime.files.write("/out/@a", chunks(["at"]));
    const { bytes } = await exportFrom({ src_dir: "/out", paths: ["@a"] });
    assert.deepEqual(await contentsOf(bytes), { "./@a": "at" });
    for (const [body, status] of [
      [{ src_dir: "/out", paths: ["-x"] }, 400],
      [{ src_dir: "/out", paths: ["--checkpoint-action=exec=true"] }, 400],
      [{ src_dir: "/out", paths: ["../etc"] }, 400],
      [{ src_dir: "/out", paths: ["a\0"] }, 400],
      [{ src_dir: "/out", paths: [] }, 400],
      [{ src_dir: "/out", paths: ["none"] }, 404],
      [{ src_dir: "/none" }, 404],
      [{ src_dir: "/out/@a" }, 400],
    ] as const) {
      const { response } = await exportFrom(body);
      assert.equal(response.status, status, JSON.stringify(body));
    }
  });

  it("keep any entry that is accepted below the directory", () => {
    const random = new SeededRandom(16);
    const names = ["a", "b", "a/b", "a/b/c", "b/c", "../a", "a/..", "./a", "/a", "a//b", "."] as const;
    const targets = ["a", "..", "../a", "../../a", ".", "a/..", "b/../..", "/a", "./b"] as const;
    for (let round = 0; round < 20_000; round += 1) {
      const entries = new SafeEntries(10);
      /** Links that were accepted, by their path. */
      const links = new Map<string, string>();
      for (let count = 0; count < 4; count += 1) {
        const name = random.of(names);
        const type = random.of(["file", "symlink", "link"] as const);
        const linkname = type === "file" ? "" : random.of(type === "link" ? names : targets);
        try {
          entries.check({ name, type, linkname });
        } catch {
          break;
        }
        const told = `${type} ${name} ${linkname} with ${JSON.stringify([...links])}`;
        const reached = resolveIn(links, name);
        assert.ok(reached !== undefined, told);
        if (type === "file") continue;
        const source = type === "link" ? resolveIn(links, linkname) : undefined;
        if (type === "link") assert.ok(source !== undefined, told);
        const target = type === "link" ? links.get(source ?? "") : linkname;
        if (target === undefined) continue;
        links.set(reached, target);
        assert.ok(resolveIn(links, reached, true) !== undefined, told);
      }
    }
  });
});

/** The path that a name leads to when the links are followed; undefined when it leaves the directory. */
function resolveIn(
  links: ReadonlyMap<string, string>,
  name: string,
  followsLast = false,
): string | undefined {
  let left = name.split("/");
  if (name.startsWith("/")) return undefined;
  let at: string[] = [];
  for (let steps = 0; left.length > 0; steps += 1) {
    // A loop leads nowhere.
    if (steps > 100) return "";
    const [next = "", ...rest] = left;
    left = rest;
    if (next === "" || next === ".") continue;
    if (next === "..") {
      if (at.length === 0) return undefined;
      at = at.slice(0, -1);
      continue;
    }
    const target = links.get([...at, next].join("/"));
    if (target === undefined || (left.length === 0 && !followsLast)) at = [...at, next];
    else if (target.startsWith("/")) return undefined;
    else left = [...target.split("/"), ...left];
  }
  return at.join("/");
}

async function* chunks(texts: readonly string[]): AsyncGenerator<Uint8Array> {
  for (const text of texts) yield Buffer.from(text);
}
