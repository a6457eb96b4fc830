import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fakeClock, memoryBackend } from "@coppice/core/testing";
import { DownloadLinks, persistentKey } from "./download-links.js";
import { startFilesServer } from "../testing/files-server.js";

interface Link {
  readonly url: string;
  readonly expires_at: number;
  readonly sandboxID: string;
}

describe("A download link", () => {
  it("lets its bearer read one file, in ranges too, without naming the sandbox", async () => {
    await using files = await startFilesServer();
    await files.put("dir/report ü.txt", "hello");
    const made = await files.fetch("/files/download-url", {
      method: "POST",
      body: JSON.stringify({ path: "dir/report ü.txt" }),
    });
    assert.equal(made.status, 200);
    const link = (await made.json()) as Link;
    assert.equal(link.sandboxID, files.sandbox.record.id);
    assert.ok(Math.abs(link.expires_at - (Date.now() / 1000 + 3600)) < 10);

    const answer = await fetch(link.url);
    assert.equal(answer.status, 200);
    assert.match(answer.headers.get("content-disposition") ?? "", /report/);
    assert.equal(await answer.text(), "hello");
    const part = await fetch(link.url, { headers: { range: "bytes=1-2" } });
    assert.deepEqual([part.status, await part.text()], [206, "el"]);
    assert.equal((await fetch(link.url, { method: "HEAD" })).status, 200);
    assert.equal((await fetch(link.url, { method: "POST" })).status, 405);

    const other = new URL(link.url);
    other.searchParams.set("path", "/etc/passwd");
    assert.equal((await fetch(other)).status, 401);
    assert.equal((await fetch(link.url.replace(/[0-9a-f](?=\?)/, "x"))).status, 401);
    assert.equal((await fetch(new URL("/files/download-token/x?path=a", link.url))).status, 401);
    // Other spellings of the sandbox give no more access than the link itself.
    const named = await files.fetch("/files/download-token/x.1.0?path=%2Fetc%2Fpasswd");
    assert.equal(named.status, 401);

    await files.server.sandboxes.kill(files.sandbox.record.id);
    const gone = await fetch(link.url);
    assert.deepEqual([gone.status, gone.headers.get("access-control-allow-origin")], [502, "*"]);
  });

  it("that is not of this server resumes no sandbox", async () => {
    await using files = await startFilesServer({ backend: memoryBackend({ pausing: {} }) });
    const { sandboxes, url } = files.server;
    const { record } = await sandboxes.create({
      template: "base",
      timeoutMs: undefined,
      secure: true,
      autoResume: true,
      onTimeout: "pause",
    });
    await sandboxes.pause(record.id);
    const id = Buffer.from(record.id).toString("base64url");
    const other = await files.fetch("/files/download-url", { method: "POST", body: '{"path":"a"}' });
    const foreign = new URL(((await other.json()) as Link).url);
    for (const path of ["x?path=a", `${id}.9999999999.${"0".repeat(64)}?path=a`, "/../x"]
      .map((rest) => `/files/download-token/${rest}`)
      .concat(foreign.pathname + foreign.search)) {
      const headers = { "e2b-sandbox-id": record.id, "e2b-sandbox-port": "49983" };
      const { status } = await fetch(new URL(path, url), { headers });
      assert.ok(status >= 400, path);
      assert.equal(sandboxes.get(record.id).record.state, "paused", path);
    }
  });

  it("begins with https behind a proxy that says so", async () => {
    await using files = await startFilesServer({ http: { trustedProxies: ["127.0.0.1"] } });
    await files.put("a.txt", "a");
    const answer = await files.fetch("/files/download-url", {
      method: "POST",
      headers: { "content-type": "application/json", "x-forwarded-proto": "https" },
      body: JSON.stringify({ path: "a.txt" }),
    });
    assert.match(((await answer.json()) as { url: string }).url, /^https:\/\//);
  });

  it("is valid for its path and sandbox only, until its second is over", async () => {
    const clock = fakeClock(1_000_000_000_000);
    const links = new DownloadLinks({ clock, lifetimeMs: 10_000 });
    links.useKey(Buffer.alloc(32, 1));
    const { token, expiresAt } = links.make("abc", "/a|b");
    assert.equal(expiresAt, 1_000_000_010);
    assert.equal(links.check(token, "/a|b"), "abc");
    const invalid = { code: "unauthenticated", message: "invalid download link" };
    const [id, exp, mac] = token.split(".");
    const others = [
      `YWJk.${exp}.${mac}`,
      `${id}.${Number(exp) + 1}.${mac}`,
      `${id}.${exp}.${"0".repeat(64)}`,
      `${token.slice(0, -1)}${token.endsWith("0") ? "1" : "0"}`,
    ];
    for (const other of [...others, "", ".", "..", `${token}.`]) {
      assert.throws(() => links.check(other, "/a|b"), invalid, other);
    }
    assert.throws(() => links.check(token, "/a"), invalid);
    const stranger = new DownloadLinks({ clock, lifetimeMs: 10_000 });
    stranger.useKey(Buffer.alloc(32, 2));
    assert.throws(() => stranger.check(token, "/a|b"), invalid);
    await clock.advance(10_999);
    assert.equal(links.check(token, "/a|b"), "abc");
    await clock.advance(1);
    assert.throws(() => links.check(token, "/a|b"), { message: "the download link has expired" });
  });

  it("works after a restart of the server", async () => {
    const dataDir = await mkdtemp(join(tmpdir(), "coppice-links-"));
    try {
      const tokens: string[] = [];
      for (let start = 0; start < 2; start += 1) {
        await using files = await startFilesServer({ dataDir });
        await files.put("/tmp/kept", "k");
        const made = await files.fetch("/files/download-url", {
          method: "POST",
          body: JSON.stringify({ path: "/tmp/kept" }),
        });
        const { url } = (await made.json()) as Link;
        tokens.push(new URL(url).pathname);
        // The link's signature is still valid, but the sandbox of the first run is gone.
        const first = await fetch(new URL(`${tokens[0]}?path=%2Ftmp%2Fkept`, files.server.url));
        assert.equal(first.status, start === 0 ? 200 : 502);
      }
    } finally {
      await rm(dataDir, { recursive: true, force: true });
    }
  });

  it("is made with a key that other users cannot read", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-link-key-"));
    try {
      const path = join(directory, "key");
      const key = await persistentKey(path);
      assert.equal((await stat(path)).mode & 0o777, 0o600);
      assert.deepEqual(await readFile(path), key);
      assert.deepEqual(await persistentKey(path), key);
      await writeFile(path, "short");
      await assert.rejects(persistentKey(path), /has 5 bytes instead of 32/);
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  });
});
