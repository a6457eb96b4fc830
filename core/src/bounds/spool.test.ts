import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { severalTenants } from "./tenants.js";
import { Spool, type SpoolFile } from "./spool.js";

const MAX_BYTES = 4 * 2 ** 20;

describe("a spool", () => {
  let directory: string;
  let spool: Spool;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-spool-"));
    spool = new Spool({ directory: () => join(directory, "spool"), maxBytes: MAX_BYTES });
  });
  after(() => rm(directory, { recursive: true }));

  const contents = async (file: SpoolFile): Promise<Buffer> => {
    const copies: Buffer[] = [];
    for await (const piece of file.pieces()) copies.push(Buffer.from(piece));
    return Buffer.concat(copies);
  };

  it("has files without a name, which are read as they were written", async () => {
    await using file = await spool.open();
    await using empty = await spool.open();
    assert.deepEqual(await readdir(join(directory, "spool")), []);
    const written = [1, 70_000, 0, 1_000_000, 384 * 1024].map((length) => randomBytes(length));
    for (const bytes of written) await file.write(bytes);
    for (let round = 0; round < 2; round++) {
      assert.ok((await contents(file)).equals(Buffer.concat(written)));
    }
    assert.equal((await contents(empty)).length, 0);
  });

  it("keeps room for other tenants", async () => {
    const limited = { directory: () => join(directory, "spool"), maxBytes: MAX_BYTES };
    const shared = new Spool({ ...limited, tenants: severalTenants() });
    await using first = await shared.open("evil");
    await using second = await shared.open("evil");
    await using other = await shared.open("acme");
    await first.write(Buffer.alloc(MAX_BYTES / 4));
    await second.write(Buffer.alloc(MAX_BYTES / 4));
    await assert.rejects(second.write(Buffer.alloc(2)), { reason: "server_busy" });
    await other.write(Buffer.alloc(MAX_BYTES / 4));
  });

  it("has one limit for all files, and gets the room of a file back", async () => {
    await using first = await spool.open();
    await using second = await spool.open();
    await second.write(Buffer.from("kept"));
    await first.write(Buffer.alloc(MAX_BYTES - 4));
    const refused = { code: "unavailable", reason: "server_busy" };
    await assert.rejects(second.write(Buffer.alloc(1)), refused);
    assert.equal(String(await contents(second)), "kept");
    await first[Symbol.asyncDispose]();
    await first[Symbol.asyncDispose]();
    await second.write(Buffer.alloc(MAX_BYTES - 4));
    await assert.rejects(second.write(Buffer.alloc(1)), refused);
  });

  it("clears what an earlier server left, and has a new directory then", async () => {
    await using _ = await spool.open();
    await writeFile(join(directory, "spool", "left"), "");
    await spool.clear();
    assert.deepEqual(await readdir(directory), []);
    await using file = await spool.open();
    await file.write(Buffer.from("x"));
  });
});
