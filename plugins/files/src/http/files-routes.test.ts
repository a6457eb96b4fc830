import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { Agent, type IncomingMessage, request as httpRequest } from "node:http";
import { createServer } from "node:net";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { SandboxError } from "@coppice/core";
import { memoryBackend } from "@coppice/core/testing";
import { type FilesServer, startFilesServer } from "../testing/files-server.js";

const MEBIBYTE = 2 ** 20;
let files: FilesServer;
before(async () => {
  files = await startFilesServer();
});
after(async () => files[Symbol.asyncDispose]());

const pathOf = (path: string, more = ""): string => `/files?path=${encodeURIComponent(path)}${more}`;
const answerOf = async (response: Response) => ({
  status: response.status,
  body: (await response.json()) as { readonly code: number; readonly message: string },
});
const refusal = (status: number, message: string) => ({ status, body: { code: status, message } });

async function upload(
  parts: readonly (readonly [content: string, filename: string])[],
  target = "/files",
): Promise<Response> {
  const form = new FormData();
  for (const [content, filename] of parts) form.append("file", new Blob([content]), filename);
  return files.fetch(target, { method: "POST", body: form });
}

it("A file is uploaded as a form or raw and comes back as it was", async () => {
  const single = await upload([["hello", "x.txt"]], pathOf("hello.txt"));
  assert.deepEqual(await answerOf(single), {
    status: 200,
    body: [{ path: "/home/user/hello.txt", name: "hello.txt", type: "file" }],
  });
  const raw = await files.put("/tmp/deep/er/raw.bin", Uint8Array.of(0, 255, 10));
  assert.deepEqual(await answerOf(raw), {
    status: 200,
    body: [{ path: "/tmp/deep/er/raw.bin", name: "raw.bin", type: "file" }],
  });

  const text = await files.fetch(pathOf("~/hello.txt"));
  assert.equal(text.status, 200);
  assert.equal(text.headers.get("content-type"), "text/plain; charset=utf-8");
  assert.equal(text.headers.get("content-length"), "5");
  assert.equal(text.headers.get("content-disposition"), "inline; filename=hello.txt");
  assert.equal(text.headers.get("vary"), "Accept-Encoding");
  assert.equal(text.headers.get("accept-ranges"), "bytes");
  assert.ok(Math.abs(Date.parse(text.headers.get("last-modified") ?? "") - Date.now()) < 10_000);
  assert.equal(await text.text(), "hello");
  const bytes = await files.fetch(pathOf("/tmp/deep/er/raw.bin"));
  assert.deepEqual(new Uint8Array(await bytes.arrayBuffer()), Uint8Array.of(0, 255, 10));
  await files.put("/tmp/unnamed", Uint8Array.of(0, 1));
  const sniffed = await files.fetch(pathOf("/tmp/unnamed"));
  assert.equal(sniffed.headers.get("content-type"), "application/octet-stream");
  assert.equal((await sniffed.arrayBuffer()).byteLength, 2);
});

it("Several files of a form go where their names say, directories included", async () => {
  const response = await upload([
    ["1", "/tmp/many/ü b.txt"],
    ["2", 'sub/quote".txt'],
    ["3", "~/tilde.txt"],
    ["4", "/tmp/../tmp/dots.txt"],
  ]);
  assert.deepEqual(await answerOf(response), {
    status: 200,
    body: [
      { path: "/tmp/many/ü b.txt", name: "ü b.txt", type: "file" },
      { path: "/home/user/sub/quote%22.txt", name: "quote%22.txt", type: "file" },
      { path: "/home/user/tilde.txt", name: "tilde.txt", type: "file" },
      { path: "/tmp/../tmp/dots.txt", name: "dots.txt", type: "file" },
    ],
  });
  const named = await files.fetch(pathOf("/tmp/many/ü b.txt"));
  assert.equal(named.headers.get("content-disposition"), "inline; filename*=utf-8''%C3%BC%20b.txt");
  assert.equal(await named.text(), "1");
  assert.equal(await (await files.fetch(pathOf("/tmp/dots.txt"))).text(), "4");
});

it("An existing file is replaced, an empty one is 200 in every coding", async () => {
  await files.put("again.txt", "a long first version");
  await files.put("again.txt", "short");
  assert.equal(await (await files.fetch(pathOf("again.txt"))).text(), "short");
  await files.put("again.txt", "");
  const identity = await files.fetch(pathOf("again.txt"));
  assert.equal(identity.status, 200);
  assert.equal(identity.headers.get("content-length"), "0");
  assert.equal(await identity.text(), "");
  const gzip = await files.fetch(pathOf("again.txt"), { headers: { "accept-encoding": "gzip" } });
  assert.equal(gzip.status, 200);
  assert.equal(await gzip.text(), "");
});

it("The user is named in the query, the Ruby client's way too", async () => {
  await files.put("/root/secret", "r");
  for (const name of ["username", "user"]) {
    const response = await files.fetch(pathOf("secret", `&${name}=root`));
    assert.equal(await response.text(), "r", name);
    const unknown = await files.fetch(pathOf("secret", `&${name}=nobody-here`));
    assert.deepEqual(
      await answerOf(unknown),
      refusal(401, "error looking up user 'nobody-here': user: unknown user nobody-here"),
    );
  }
  const write = await upload([["x", "x"]], "/files?username=nobody-here");
  assert.equal(write.status, 401);
});

it("Failed downloads are answered in envd's words", async () => {
  const get = async (path: string, headers: Record<string, string> = {}) =>
    answerOf(await files.fetch(path, { headers }));
  assert.deepEqual(await get(pathOf("nope")), refusal(404, "path '/home/user/nope' does not exist"));
  assert.deepEqual(await get(pathOf("/root/../tmp")), refusal(400, "path '/root/../tmp' is a directory"));
  assert.deepEqual(await get("/files"), refusal(400, "path '/home/user' is a directory"));
  assert.deepEqual(await get(pathOf("~other/x")), refusal(400, "cannot expand user-specific home dir"));
  assert.deepEqual(await get(pathOf("a\0b")), refusal(400, "a path cannot contain a NUL byte"));
  assert.deepEqual(await get(pathOf("n".repeat(256))), refusal(400, "file name too long"));
  assert.deepEqual(await get(pathOf("d/".repeat(3000))), refusal(400, "file name too long"));
  const socket = createServer().listen(join(await files.hostPath("/tmp"), "s"));
  await once(socket, "listening");
  assert.deepEqual(await get(pathOf("/tmp/s")), refusal(400, "path '/tmp/s' is not a regular file"));
  socket.close();
  await files.put("refused.txt", "x");
  assert.deepEqual(
    await get(pathOf("refused.txt"), { "accept-encoding": "identity;q=0, br" }),
    refusal(406, "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip]"),
  );
});

it("Failed uploads are answered in envd's words", async () => {
  const post = async (path: string, body: RequestInit["body"] | undefined, type: string, more = {}) =>
    answerOf(
      await files.fetch(path, {
        method: "POST",
        ...(body === undefined ? {} : { body }),
        headers: { "content-type": type, ...more },
      }),
    );
  assert.deepEqual(
    await post("/files", "x", "application/octet-stream"),
    refusal(400, "path query parameter is required for raw body upload"),
  );
  assert.deepEqual(
    await post("/files", "x", "text/plain"),
    refusal(
      400,
      "unsupported content type: text/plain, expected multipart/form-data or application/octet-stream",
    ),
  );
  assert.deepEqual(
    await post(pathOf("x"), "x", "application/octet-stream", { "content-encoding": "br" }),
    refusal(400, "error decompressing request body: unsupported Content-Encoding: br"),
  );
  const broken = await post(pathOf("x"), "no gzip", "application/octet-stream", {
    "content-encoding": "gzip",
  });
  assert.equal(broken.status, 400);
  assert.match(broken.body.message, /^error decompressing request body: /);
  const cut = gzipSync(randomBytes(1000)).subarray(0, 500);
  const truncated = await post(pathOf("x"), cut, "application/octet-stream", { "content-encoding": "gzip" });
  assert.match(truncated.body.message, /^error decompressing request body: /);
  assert.equal((await files.fetch(pathOf("x"))).status, 404, "nothing of a broken upload is left");
  for (const [body, type] of [
    ["x", "multipart/form-data"],
    ["x", "multipart/form-data; boundary=X"],
    [undefined, "multipart/form-data; boundary=X"],
    [
      `--X\r\nContent-Disposition: form-data; name="file"; filename="cut"\r\n\r\nhalf`,
      "multipart/form-data; boundary=X",
    ],
    [`--X\r\nContent-Disposition: ${"h".repeat(200_000)}`, "multipart/form-data; boundary=X"],
  ] as const) {
    const answer = await post("/files", body, type);
    assert.equal(answer.status, 400, `${type}: ${body}`);
    assert.match(answer.body.message, /^error parsing multipart form: /);
  }
  assert.equal((await files.fetch(pathOf("cut"))).status, 404);
  assert.deepEqual(await answerOf(await files.put("/tmp", "x")), refusal(400, "path is a directory: /tmp"));
  assert.deepEqual(
    await answerOf(await upload([["x", ""]])),
    refusal(400, "path is a directory: /home/user"),
  );
  await files.put("plain", "x");
  assert.deepEqual(
    await answerOf(await files.put("plain/below/it", "x")),
    refusal(500, "error ensuring directories: path is a file: /home/user/plain"),
  );
  assert.deepEqual(
    await answerOf(await files.put("x", "x", { "x-metadata-a": "\u00e9" })),
    refusal(400, "invalid metadata: the value of 'a' is not printable ASCII"),
  );
});

it("Two parts for one path are refused, and the first one is there", async () => {
  const answer = await answerOf(
    await upload([
      ["first", "twice.txt"],
      ["second", "./twice.txt"],
      ["third", "never.txt"],
    ]),
  );
  assert.deepEqual(
    answer,
    refusal(
      400,
      "you cannot upload multiple files to the same path '/home/user/twice.txt' in one upload request, only the first specified file was uploaded",
    ),
  );
  assert.equal(await (await files.fetch(pathOf("twice.txt"))).text(), "first");
  assert.equal((await files.fetch(pathOf("never.txt"))).status, 404);
});

it("Parts of a file, and only changed ones, are sent on request", async () => {
  await files.put("range.txt", "0123456789");
  const get = (headers: Record<string, string>, method = "GET") =>
    files.fetch(pathOf("range.txt"), { headers: { "accept-encoding": "gzip", ...headers }, method });
  const part = await get({ range: "bytes=2-4" });
  assert.equal(part.status, 206);
  assert.equal(part.headers.get("content-range"), "bytes 2-4/10");
  assert.equal(part.headers.get("content-length"), "3");
  assert.equal(part.headers.get("content-encoding"), null);
  assert.equal(await part.text(), "234");
  assert.equal(await (await get({ range: "bytes=-3" })).text(), "789");
  const past = await get({ range: "bytes=10-" });
  assert.equal(past.headers.get("content-range"), "bytes */10");
  assert.deepEqual(await answerOf(past), refusal(416, "invalid range: failed to overlap"));

  const modified = (await get({})).headers.get("last-modified") ?? "";
  const unchanged = await get({ "if-modified-since": modified });
  assert.equal(unchanged.status, 304);
  assert.equal(unchanged.headers.get("last-modified"), modified);
  assert.equal(unchanged.headers.get("content-type"), null);
  assert.equal(await unchanged.text(), "");
  assert.equal((await get({ "if-none-match": "*" })).status, 304);
  assert.equal((await get({ "if-match": '"tag"' })).status, 412);
  assert.equal((await get({ "range": "bytes=0-1", "if-range": modified })).status, 206);
  const other = await get({ "range": "bytes=0-1", "if-range": "Sun, 01 Jun 2025 12:00:00 GMT" });
  assert.equal(await other.text(), "0123456789");

  const head = await get({ "accept-encoding": "identity" }, "HEAD");
  assert.equal(head.status, 200);
  assert.equal(head.headers.get("content-length"), "10");
  assert.equal((await files.fetch(pathOf("nope"), { method: "HEAD" })).status, 404);
});

it("Bodies are compressed both ways", async () => {
  const text = "compressible ".repeat(10_000);
  const up = await files.put("zipped.txt", gzipSync(text), { "content-encoding": "GZip" });
  assert.equal(up.status, 200);
  assert.equal((await files.put("plain.txt", "as it is", { "content-encoding": "" })).status, 200);
  const down = await files.fetch(pathOf("zipped.txt"), { headers: { "accept-encoding": "gzip, deflate" } });
  assert.equal(down.headers.get("content-encoding"), "gzip");
  assert.equal(down.headers.get("content-length"), null);
  assert.equal(await down.text(), text);

  const form = new FormData();
  form.append("file", new Blob([text]), "zipped-form.txt");
  const encoded = new Response(form);
  const posted = await files.fetch("/files", {
    method: "POST",
    body: gzipSync(new Uint8Array(await encoded.arrayBuffer())),
    headers: { "content-type": encoded.headers.get("content-type") ?? "", "content-encoding": "gzip" },
  });
  assert.equal(posted.status, 200);
  assert.equal(await (await files.fetch(pathOf("zipped-form.txt"))).text(), text);
});

it("A client that breaks off an upload leaves the old file, and nothing new", async () => {
  await files.put("kept.txt", "the old content");
  const before = (await files.call("ListDir", { path: ".", depth: 9 })).body.entries.length;
  const chunk = randomBytes(MEBIBYTE);
  const raw = { "content-type": "application/octet-stream" };
  const form = { "content-type": "multipart/form-data; boundary=X" };
  const header = (name: string) =>
    Buffer.from(`--X\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\n\r\n`);
  for (const [target, headers, begin] of [
    [pathOf("kept.txt"), raw, Buffer.from("small")],
    [pathOf("kept.txt"), raw, chunk],
    [pathOf("fresh.txt"), raw, chunk],
    [pathOf("fresh.txt"), { ...raw, "content-encoding": "gzip" }, gzipSync(chunk).subarray(0, -9)],
    ["/files", form, Buffer.concat([header("kept.txt"), chunk])],
    ["/files", form, Buffer.concat([header("fresh.txt"), Buffer.from("small")])],
  ] as const) {
    const broken = await files.upload(target, headers);
    await broken.send(begin);
    await delay(30);
    broken.abandon();
  }
  await delay(100);
  assert.equal(await (await files.fetch(pathOf("kept.txt"))).text(), "the old content");
  assert.equal((await files.fetch(pathOf("fresh.txt"))).status, 404);
  const entries = (await files.call("ListDir", { path: ".", depth: 9 })).body.entries;
  assert.equal(entries.length, before, "no temporary file is left");
});

it("64 MiB go up and down in constant memory", async () => {
  const chunk = randomBytes(MEBIBYTE);
  const move = async (sizeMiB: number, codings: readonly string[]): Promise<void> => {
    const expected = createHash("sha256");
    for (let index = 0; index < sizeMiB; index++) expected.update(chunk);
    const digest = expected.digest("hex");
    let sent = 0;
    const body = new ReadableStream({
      pull(controller) {
        if (sent++ === sizeMiB) controller.close();
        else controller.enqueue(chunk);
      },
    });
    assert.equal((await files.put("big.bin", body)).status, 200);
    for (const coding of codings) {
      const down = await files.fetch(pathOf("big.bin"), { headers: { "accept-encoding": coding } });
      const hash = createHash("sha256");
      for await (const piece of down.body ?? []) hash.update(piece);
      assert.equal(hash.digest("hex"), digest, coding);
    }
  };
  // Client and server share this process: a first transfer lets both grow to their working size.
  await move(32, ["identity", "gzip"]);
  const base = process.memoryUsage().rss;
  let peakBytes = 0;
  const sampler = setInterval(() => {
    peakBytes = Math.max(peakBytes, process.memoryUsage().rss - base);
  }, 10);
  try {
    await move(64, ["identity"]);
  } finally {
    clearInterval(sampler);
  }
  assert.ok(peakBytes < 32 * MEBIBYTE, `memory grew by ${Math.round(peakBytes / MEBIBYTE)} MiB`);
});

it("A slow reader slows the file down, and one that leaves closes it", async () => {
  await files.put("slow.bin", randomBytes(32 * MEBIBYTE));
  const { files: own } = files.sandbox.runtime;
  const read = own.read.bind(own);
  let pulledBytes = 0;
  const closed = Promise.withResolvers<void>();
  own.read = async (path) => {
    const file = await read(path);
    return {
      info: file.info,
      async *content(options) {
        for await (const chunk of file.content(options)) {
          pulledBytes += chunk.length;
          yield chunk;
        }
      },
      async [Symbol.asyncDispose]() {
        await file[Symbol.asyncDispose]();
        closed.resolve();
      },
    };
  };
  try {
    const down = await files.fetch(pathOf("slow.bin"));
    await delay(200);
    // Socket buffers of both ends hold a few MiB.
    assert.ok(pulledBytes < 16 * MEBIBYTE, `${pulledBytes} bytes were read for a reader that does not read`);
    await down.body?.cancel();
    await closed.promise;
  } finally {
    own.read = read;
  }
});

it("A full disk is 507, and a file that shrinks breaks its answer off", async () => {
  await using own = await startFilesServer({ backend: memoryBackend() });
  const { files: disk } = own.sandbox.runtime;
  disk.write = async (_path, data) => {
    for await (const chunk of data) assert.equal(chunk.length, 3);
    throw new SandboxError("disk_full", "no space left on device", { shortage: "space" });
  };
  assert.deepEqual(
    await answerOf(await own.put("x", "abc")),
    refusal(507, "attempted to write 3 bytes: not enough disk space available"),
  );
  const read = disk.read.bind(disk);
  disk.read = async (path) => {
    const file = await read(path);
    return { ...file, info: { ...file.info, name: "x.bin", sizeBytes: 100 } };
  };
  delete (disk as { write?: unknown }).write;
  await own.put("x", "abc");
  for (const coding of ["identity", "gzip"]) {
    const down = async () =>
      (
        await own.fetch(pathOf("x"), {
          headers: { "accept-encoding": coding },
          // A server that waits for the missing bytes fails this test instead of hanging it.
          signal: AbortSignal.timeout(20_000),
        })
      ).text();
    await assert.rejects(down(), TypeError, coding);
  }
});

it("A file that the server reads itself breaks its answer off where its disk fails or it is cut, in every coding", async () => {
  await files.put("failing.bin", randomBytes(2 * MEBIBYTE));
  const { files: own } = files.sandbox.runtime;
  const read = own.read.bind(own);
  const failure = new SandboxError("file_operation_failed", "read failing.bin: EIO");
  const ends: readonly (() => Promise<number>)[] = [() => Promise.reject(failure), async () => 0];
  try {
    for (const end of ends) {
      own.read = async (path) => {
        const file = await read(path);
        const direct = async () => ({
          read: async (target: Uint8Array, position: number) =>
            position < MEBIBYTE ? target.byteLength : end(),
        });
        return {
          info: file.info,
          content: (options) => file.content(options),
          direct,
          [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
        };
      };
      for (const [coding, range] of [
        ["identity", undefined],
        ["identity", "bytes=5-2000000"],
        ["gzip", undefined],
      ] as const) {
        const down = await files.fetch(pathOf("failing.bin"), {
          headers: { "accept-encoding": coding, ...(range !== undefined && { range }) },
          signal: AbortSignal.timeout(20_000),
        });
        await assert.rejects(down.arrayBuffer(), TypeError, coding);
      }
    }
  } finally {
    own.read = read;
  }
  assert.equal((await files.fetch(pathOf("failing.bin"))).status, 200);
});

it("Uploads past the limit are 413, also when they are small until decompressed", async () => {
  await using small = await startFilesServer({ settings: { maxUpload: "1MiB", maxFilesPerUpload: 2 } });
  const tooLarge = refusal(413, `the upload is larger than ${MEBIBYTE} bytes`);
  const body = randomBytes(2 * MEBIBYTE);
  // It holds the event loop for longer than the server waits for the rest of a refused body, so it is made before.
  const bomb = gzipSync(Buffer.alloc(64 * MEBIBYTE));
  assert.deepEqual(await answerOf(await small.put("x", body)), tooLarge);
  const stream = new ReadableStream({
    start(controller) {
      controller.enqueue(new Uint8Array(body));
      controller.close();
    },
  });
  assert.deepEqual(await answerOf(await small.put("x", stream)), tooLarge);
  assert.deepEqual(await answerOf(await small.put("x", bomb, { "content-encoding": "gzip" })), tooLarge);
  const large = new FormData();
  large.append("file", new Blob([body]), "x");
  assert.deepEqual(await answerOf(await small.fetch("/files", { method: "POST", body: large })), tooLarge);
  const form = new FormData();
  for (const name of ["a", "b", "c"]) form.append("file", new Blob([name]), name);
  const many = await small.fetch("/files", { method: "POST", body: form });
  assert.deepEqual(await answerOf(many), refusal(400, "a multipart body can have 2 parts"));
  assert.equal((await small.put("x", "fits")).status, 200);
});

it("A refusal in the middle of a body leaves the connection to the next request", async () => {
  await using own = await startFilesServer({ settings: { maxUpload: "1MiB" } });
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const post = async (path: string, type: string, body: Uint8Array): Promise<number | undefined> => {
    const sent = httpRequest(new URL(path, own.server.url), {
      agent,
      method: "POST",
      headers: {
        "e2b-sandbox-id": own.sandbox.record.id,
        "e2b-sandbox-port": "49983",
        "content-type": type,
        "content-length": body.length,
      },
    });
    sent.end(body);
    const [answer] = (await once(sent, "response")) as [IncomingMessage];
    await answer.toArray();
    return answer.statusCode;
  };
  const raw = "application/octet-stream";
  const part = (name: string, content: string): string =>
    `--X\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\n\r\n${content}\r\n`;
  const twice = Buffer.from(`${part("a", "1")}${part("a", "2")}${part("b", "z".repeat(900_000))}--X--`);
  try {
    assert.equal(await post("/files", "multipart/form-data; boundary=X", twice), 400);
    assert.equal(await post("/files?path=/tmp", raw, Buffer.alloc(900_000)), 400);
    assert.equal(await post("/files?path=x", "text/plain", Buffer.alloc(900_000)), 400);
    assert.equal(await post("/files?path=x", raw, Buffer.alloc(3 * MEBIBYTE)), 413);
    assert.equal(await post("/files?path=x", raw, Buffer.from("fine")), 200);
    assert.equal(Object.values(agent.freeSockets).flat().length, 1, "they all went over one connection");
  } finally {
    agent.destroy();
  }
});

it("Metadata is kept and shown where the backend can, replaced by every write", async () => {
  await using memory = await startFilesServer({ backend: memoryBackend() });
  const described = await memory.put("m.txt", "x", { "x-metadata-Purpose": "test" });
  assert.deepEqual(await described.json(), [
    { path: "/home/user/m.txt", name: "m.txt", type: "file", metadata: { purpose: "test" } },
  ]);
  assert.deepEqual((await memory.call("Stat", { path: "m.txt" })).body.entry.metadata, { purpose: "test" });
  assert.deepEqual(await (await memory.put("m.txt", "y")).json(), [
    { path: "/home/user/m.txt", name: "m.txt", type: "file" },
  ]);
});

it("A large file comes back as it was: whole, in ranges, compressed, and to a slow client", async () => {
  const data = randomBytes(3 * MEBIBYTE + 5);
  await files.put("/tmp/large.bin", data);
  const whole = await files.fetch(pathOf("/tmp/large.bin"));
  assert.equal(whole.headers.get("content-length"), String(data.length));
  assert.ok(data.equals(Buffer.from(await whole.arrayBuffer())));
  const gzip = await files.fetch(pathOf("/tmp/large.bin"), { headers: { "accept-encoding": "gzip" } });
  assert.equal(gzip.headers.get("content-encoding"), "gzip");
  assert.ok(data.equals(Buffer.from(await gzip.arrayBuffer())));
  const part = await files.fetch(pathOf("/tmp/large.bin"), { headers: { range: "bytes=11-2000000" } });
  assert.equal(part.status, 206);
  assert.ok(data.subarray(11, 2_000_001).equals(Buffer.from(await part.arrayBuffer())));
  const parts = await files.fetch(pathOf("/tmp/large.bin"), {
    headers: { range: "bytes=0-999999,1000000-1999999" },
  });
  const body = Buffer.from(await parts.arrayBuffer());
  assert.equal(body.length, Number(parts.headers.get("content-length")));
  for (const start of [0, 1_000_000]) assert.ok(body.includes(data.subarray(start, start + 1_000_000)));
  const slow = await files.fetch(pathOf("/tmp/large.bin"));
  const received: Uint8Array[] = [];
  for await (const chunk of slow.body ?? []) {
    received.push(chunk);
    await delay(1);
  }
  assert.ok(data.equals(Buffer.concat(received)));
});
