import assert from "node:assert/strict";
import { it } from "node:test";
import { setImmediate as nextTurn } from "node:timers/promises";
import { multipartFiles } from "./request-body.js";

const TYPE = "multipart/form-data; boundary=X";
const part = (filename: string, content: string, name = "file"): string =>
  `--X\r\nContent-Disposition: form-data; name="${name}"; filename="${filename}"\r\n\r\n${content}\r\n`;

async function* chunked(text: string | Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function collect(
  body: AsyncIterable<Uint8Array>,
  { contentType = TYPE, maxParts = 100 } = {},
): Promise<readonly (readonly [string, string])[]> {
  const files: [string, string][] = [];
  for await (const { filename, content } of multipartFiles(body, contentType, { field: "file", maxParts })) {
    const chunks: Uint8Array[] = [];
    for await (const chunk of content) chunks.push(chunk);
    files.push([filename, Buffer.concat(chunks).toString()]);
  }
  return files;
}

it("Files keep their names as they were sent, wherever the chunks are cut", async () => {
  const form = new FormData();
  form.append("file", new Blob(["one"]), '/a b/ü%41".txt');
  form.append("ignored", "a field");
  form.append("other", new Blob(["no"]), "no.txt");
  form.append("file", new Blob([]), "../empty");
  form.append("file", new Blob(["x\r\n--".repeat(3)]), "C:\\dir\\file");
  const encoded = new Response(form);
  const contentType = encoded.headers.get("content-type") ?? "";
  const bytes = new Uint8Array(await encoded.arrayBuffer());
  for (const size of [1, 7, bytes.length]) {
    assert.deepEqual(
      await collect(chunked(bytes, size), { contentType }),
      [
        ["/a b/ü%41%22.txt", "one"],
        ["../empty", ""],
        ["C:\\dir\\file", "x\r\n--".repeat(3)],
      ],
      `in chunks of ${size}`,
    );
  }
});

it("A part without a file name is a file all the same, and any multipart type will do", async () => {
  const body = `preamble\r\n--X\r\nContent-Disposition: form-data; name="file"\r\n\r\nraw\r\n--X--\r\nepilogue`;
  assert.deepEqual(await collect(chunked(body, 9), { contentType: 'Multipart/Mixed; boundary="X"' }), [
    ["", "raw"],
  ]);
  assert.deepEqual(await collect(chunked("--X--\r\n", 99)), []);
});

it("An incomplete or invalid multipart body is refused", async () => {
  const refused = async (text: string, contentType = TYPE): Promise<void> => {
    await assert.rejects(collect(chunked(text, 50), { contentType }), (error: Error & { code?: string }) => {
      assert.equal(error.code, "invalid_argument", error.stack ?? "");
      assert.match(error.message, /^error parsing multipart form: /);
      return true;
    });
  };
  await refused("");
  await refused("no multipart at all");
  await refused(part("a", "content"));
  await refused(part("a", "content".repeat(50)).slice(0, 200));
  await refused('--X\r\nContent-Disposition: form-data; name="file"; file');
  await refused(part("a", "content"), "multipart/form-data");
  await refused(part("a", "content"), `multipart/form-data; boundary=${"b".repeat(300)}`);
  await refused(part("a", "content"), "multipart/form-data; boundary=");
});

it("An endless or invalid header yields no file and uses no memory", async () => {
  const endless = `--X\r\nContent-Disposition: form-data; name="file"; filename="${"a".repeat(500_000)}`;
  await assert.rejects(collect(chunked(endless, 65_536)), { code: "invalid_argument" });
  const senseless = `--X\r\nno colon here\r\n\r\nlost\r\n${part("kept", "yes")}--X--`;
  assert.deepEqual(await collect(chunked(senseless, 65_536)), [["kept", "yes"]]);
});

it("More parts than allowed are refused", async () => {
  const body = `${part("a", "1")}${part("b", "2", "skipped")}${part("c", "3")}--X--`;
  assert.equal((await collect(chunked(body, 10), { maxParts: 3 })).length, 2);
  await assert.rejects(collect(chunked(body, 10), { maxParts: 2 }), {
    code: "invalid_argument",
    message: "a multipart body can have 2 parts",
  });
});

it("An error of the body reaches the reader of the file that it breaks off", async () => {
  const lost = new Error("connection lost");
  async function* broken(): AsyncGenerator<Uint8Array> {
    yield Buffer.from(part("a", "begin").slice(0, -2));
    await nextTurn();
    throw lost;
  }
  let seen: unknown;
  const reading = (async () => {
    for await (const { content } of multipartFiles(broken(), TYPE, { field: "file", maxParts: 9 })) {
      try {
        for await (const chunk of content) assert.match(Buffer.from(chunk).toString(), /^beg/);
      } catch (error) {
        seen = error;
        throw error;
      }
    }
  })();
  await assert.rejects(reading, lost);
  assert.equal(seen, lost);
});

it("The body is read no faster than the files are", async () => {
  let givenBytes = 0;
  async function* endless(): AsyncGenerator<Uint8Array> {
    yield Buffer.from('--X\r\nContent-Disposition: form-data; name="file"; filename="big"\r\n\r\n');
    for (;;) {
      givenBytes += 65_536;
      yield Buffer.alloc(65_536, 97);
    }
  }
  for await (const { content } of multipartFiles(endless(), TYPE, { field: "file", maxParts: 9 })) {
    for await (const chunk of content) {
      assert.ok(chunk.length > 0);
      break;
    }
    for (let turn = 0; turn < 50; turn++) await nextTurn();
    break;
  }
  assert.ok(givenBytes < 500_000, `${givenBytes} bytes were taken for one chunk read`);

  let givenParts = 0;
  async function* manySmall(): AsyncGenerator<Uint8Array> {
    for (;;) {
      givenParts++;
      yield Buffer.from(part(`f${givenParts}`, "tiny"));
    }
  }
  for await (const { content } of multipartFiles(manySmall(), TYPE, { field: "file", maxParts: 1e9 })) {
    for (let turn = 0; turn < 50; turn++) await nextTurn();
    for await (const chunk of content) assert.ok(chunk.length > 0);
    break;
  }
  assert.ok(givenParts < 10, `${givenParts} parts were taken for one read`);
});
