import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fakeClock } from "@coppice/core/testing";
import { type Requested, templatesServer, type TemplatesServer } from "../testing/templates-server.js";

const HASH = "0123456789abcdef".repeat(4);
const HOUR_MS = 3_600_000;

interface Link {
  readonly present: boolean;
  readonly url: string;
}

describe("uploads for COPY steps", () => {
  const clock = fakeClock(Date.UTC(2026, 0, 1));
  let dataDir: string;
  let server: TemplatesServer;
  let own: Requested;

  const start = async () => {
    const settings = {
      maxUpload: "1KiB",
      // Room for three, however small they are.
      maxUploads: "195KiB",
      uploadsKept: "1h",
      buildTimeout: "30m",
      waitingTimeout: "30m",
    };
    server = await templatesServer({ dataDir, clock, settings });
  };
  before(async () => {
    dataDir = await mkdtemp(join(tmpdir(), "coppice-uploads-"));
    await start();
    own = (await server.ask<Requested>("POST /v3/templates", { name: "own" })).json;
  });
  after(async () => {
    await server.stop();
    await rm(dataDir, { recursive: true });
  });

  const linkOf = async (hash = HASH, tenant?: string): Promise<Link> => {
    const { status, json } = await server.ask<Link>(
      `GET /templates/${own.templateID}/files/${hash}`,
      undefined,
      tenant,
    );
    assert.equal(status, 201);
    return json;
  };
  const put = async (url: string, body: string) => {
    const response = await fetch(url, { method: "PUT", body });
    return { status: response.status, text: await response.text() };
  };
  const stored = async () => {
    const names = await readdir(join(dataDir, "templates/uploads"), { recursive: true, withFileTypes: true });
    return names.filter((entry) => entry.isFile()).map(({ name }) => name);
  };

  it("an archive is uploaded by its link alone, and present afterwards", async () => {
    const link = await linkOf();
    assert.equal(link.present, false);
    assert.ok(link.url.startsWith(`${server.url}/templates/uploads/`), link.url);
    assert.ok(!link.url.includes(HASH));
    assert.deepEqual(await put(link.url, "archive"), { status: 200, text: "" });
    assert.deepEqual(await stored(), [HASH]);
    const folder = createHash("sha256").update("default").digest("hex");
    assert.equal(await readFile(join(dataDir, "templates/uploads", folder, HASH), "utf8"), "archive");
    const again = await linkOf();
    assert.equal(again.present, true);
    assert.deepEqual(await put(again.url, "replaced"), { status: 200, text: "" });
    const found: (string | undefined)[] = [];
    server.builder.script = (_, surroundings) => {
      found.push(...[HASH, "f".repeat(64)].map((hash) => surroundings.findUpload(hash)));
      throw new Error("enough");
    };
    await server.ended(await server.build("own"));
    assert.deepEqual(found, [join(dataDir, "templates/uploads", folder, HASH), undefined]);
    assert.equal(await readFile(String(found[0]), "utf8"), "replaced");
  });

  it("an archive is the tenant's alone", async () => {
    const { json: theirs } = await server.ask<Requested>("POST /v3/templates", { name: "theirs" }, "other");
    const path = `GET /templates/${theirs.templateID}/files/${HASH}`;
    const { json } = await server.ask<Link>(path, undefined, "other");
    assert.equal(json.present, false);
    const refused = await server.ask<{ readonly message: string }>(path);
    assert.deepEqual(
      [refused.status, refused.json.message],
      [404, `Error when getting template: template '${theirs.templateID}' not found`],
    );
  });

  it("wrong hashes and links are refused", async () => {
    for (const hash of ["x", "A".repeat(64), `${"0".repeat(63)}g`, "..%2f..%2fetc", "0".repeat(65)]) {
      const { status, json } = await server.ask<{ readonly message: string }>(
        `GET /templates/${own.templateID}/files/${hash}`,
      );
      assert.deepEqual([status, json.message], [400, "Invalid files hash"], hash);
    }
    const { url } = await linkOf();
    const [payload = "", signature = ""] = url.slice(url.lastIndexOf("/") + 1).split(".");
    const permission = JSON.parse(Buffer.from(payload, "base64url").toString()) as object;
    const forged = Buffer.from(JSON.stringify({ ...permission, tenant: "other" })).toString("base64url");
    for (const ticket of [
      `${forged}.${signature}`,
      `${payload}.${signature.slice(1)}`,
      payload,
      "x.y",
      `${payload}.`,
    ]) {
      const { status, text } = await put(`${server.url}/templates/uploads/${ticket}`, "evil");
      assert.equal(status, 401, text);
    }
    await clock.advance(30 * 60_000 + 1);
    const late = await put(url, "late");
    assert.deepEqual(
      [late.status, JSON.parse(late.text)],
      [401, { code: 401, message: "the URL of the upload has expired" }],
    );
    assert.deepEqual(await stored(), [HASH]);
  });

  it("a body without a length, or one that is too long, is refused before it is read", async () => {
    const { url } = await linkOf("1".repeat(64));
    const chunked = await new Promise<number | undefined>((resolve, reject) => {
      const sent = request(url, { method: "PUT" }, (response) => {
        response.resume();
        resolve(response.statusCode);
      });
      sent.on("error", reject);
      sent.write("some");
      sent.end("more");
    });
    assert.equal(chunked, 411);
    const long = await put(url, "x".repeat(1025));
    assert.equal(long.status, 413, long.text);
    assert.deepEqual(await stored(), [HASH]);
  });

  it("an upload that breaks off leaves nothing", async () => {
    const { url } = await linkOf("2".repeat(64));
    const sent = request(url, { method: "PUT", headers: { "content-length": "1000" } });
    sent.on("error", () => {});
    sent.write("a part");
    for (let attempts = 0; attempts < 500 && (await stored()).length < 2; attempts += 1) await sleep(5);
    assert.equal((await stored()).length, 2);
    sent.destroy();
    for (let attempts = 0; attempts < 500 && (await stored()).length > 1; attempts += 1) await sleep(5);
    assert.deepEqual(await stored(), [HASH]);
    assert.equal((await linkOf("2".repeat(64))).present, false);
  });

  it("archives have a space, of which those that are not needed give way", async () => {
    for (const digit of ["3", "4", "5"]) {
      const { url } = await linkOf(digit.repeat(64));
      const { status, text } = await put(url, "x".repeat(1024));
      assert.equal(status, digit === "5" ? 429 : 200, text);
    }
    await clock.advance(HOUR_MS + 1);
    await linkOf("4".repeat(64));
    const { url } = await linkOf("5".repeat(64));
    assert.equal((await put(url, "x".repeat(1024))).status, 200);
    assert.deepEqual(
      (await stored()).toSorted(),
      ["3", "4", "5"].map((digit) => digit.repeat(64)),
    );
    await clock.advance(HOUR_MS - 1);
    await clock.advance(5 * 60_000);
    for (let attempts = 0; attempts < 500 && (await stored()).length > 0; attempts += 1) await sleep(5);
    assert.deepEqual(await stored(), []);
  });

  it("a restart keeps links and whole archives, and removes the rest", async () => {
    const { url } = await linkOf();
    const { url: second } = await linkOf("7".repeat(64));
    assert.equal((await put(url, "archive")).status, 200);
    assert.equal((await put(second, "archive")).status, 200);
    await server.stop();
    const uploads = join(dataDir, "templates/uploads");
    const folder = join(uploads, createHash("sha256").update("default").digest("hex"));
    await writeFile(join(uploads, "incoming/half"), "half");
    await writeFile(join(folder, "8".repeat(64)), "unknown");
    await writeFile(join(folder, "7".repeat(64)), "cut");
    await start();
    assert.deepEqual(await stored(), [HASH]);
    const port = new URL(server.url).port;
    assert.equal((await put(second.replace(/:\d+\//, `:${port}/`), "anew")).status, 200);
    assert.equal((await linkOf("7".repeat(64))).present, true);
  });
});
