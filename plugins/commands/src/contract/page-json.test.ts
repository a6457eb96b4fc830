import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import type { LogPage } from "./commands.js";
import { pageBody, pageJson } from "./page-json.js";

const COMMAND: LogPage["command"] = {
  id: "c",
  sandboxId: "s",
  pid: 1,
  path: "/bin/true",
  tag: undefined,
  startedAtMs: 0,
  phase: "exited",
  end: undefined,
  outputBytes: 0,
};
/** Larger than a part, and no multiple of its size. */
const LARGE = 200_001;

describe("the JSON of a page", () => {
  const texts: readonly [string, Buffer][] = [
    ["nothing", Buffer.alloc(0)],
    ["a line", Buffer.from('with "quotes", \\ and \u0007\r\n')],
    ["ASCII in several parts", Buffer.from("0123456789\n".repeat(LARGE / 11))],
    ["characters of several bytes at the borders of parts", Buffer.from("€𝄞é\u2028".repeat(LARGE / 12))],
    ["bytes that are no text", new SeededRandom(1).bytes(LARGE)],
    ["a character that is cut at the end", Buffer.from("𝄞".repeat(LARGE / 4)).subarray(0, -1)],
  ];
  for (const [title, bytes] of texts) {
    it(`of ${title} is that of JSON.stringify, and in base64 exact`, async () => {
      const expected = { bytes: bytes.toString("utf8"), next_cursor: bytes.length, phase: "exited" };
      assert.deepEqual(await parsed(bytes, true), expected);
      assert.deepEqual(await parsed(bytes, false), { ...expected, bytes: bytes.toString("base64") });
    });
  }
});

async function parsed(bytes: Buffer, isText: boolean): Promise<unknown> {
  const page: LogPage = {
    command: { ...COMMAND, outputBytes: bytes.length },
    pieces: [{ stream: "stdout", data: Buffer.from(bytes), offset: 0, atMs: 0 }],
    nextCursor: bytes.length,
    truncatedBefore: undefined,
    release: () => undefined,
  };
  const body = await pageBody(pageJson(page, { isText, fields: { phase: "exited" } }));
  const parts = Buffer.isBuffer(body) ? [body] : ((await body.toArray()) as Buffer[]);
  return JSON.parse(Buffer.concat(parts).toString());
}
