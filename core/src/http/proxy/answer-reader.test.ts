import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { AnswerHead } from "./answer-head.js";
import { AnswerReader } from "./answer-reader.js";

const LIMIT = 200;

interface Read {
  readonly status: number | undefined;
  readonly headers: readonly string[];
  readonly body: string;
  readonly excess: number;
  readonly isComplete: boolean;
  readonly isKept: boolean | undefined;
}

/** Reads an answer in pieces of some bytes; `hangsUp` ends the connection after it. */
function read(
  text: string,
  { method = "GET", pieceBytes = text.length, hangsUp = false, headLimit = LIMIT } = {},
): Read {
  const reader = new AnswerReader(headLimit);
  let head: AnswerHead | undefined;
  let ends = 0;
  let body = "";
  let excess = 0;
  const sink = {
    head: (given: AnswerHead) => void (head = given),
    body: (bytes: Buffer) => void (body += bytes.toString("latin1")),
    end(bytes: Buffer | undefined) {
      ends += 1;
      body += bytes?.toString("latin1") ?? "";
    },
  };
  reader.begin(method);
  const bytes = Buffer.from(text, "latin1");
  for (let at = 0; at < bytes.length; at += pieceBytes) {
    const piece = bytes.subarray(at, at + pieceBytes);
    if (reader.isComplete) excess += piece.length;
    else {
      let left = reader.push(piece, sink);
      // It stops when its turn of the event loop is over.
      while (left > 0 && !reader.isComplete) left = reader.push(piece.subarray(piece.length - left), sink);
      excess += left;
    }
    // The next bytes may be read into the same memory.
    piece.fill("!");
  }
  if (hangsUp && !reader.isComplete) reader.finish(sink);
  assert.equal(ends, reader.isComplete ? 1 : 0);
  const { headers = [], isKept, status } = head ?? {};
  return { status, headers, body, excess, isComplete: reader.isComplete, isKept };
}

describe("the reader of answers", () => {
  it("finds head, body and end, however the bytes are cut", () => {
    for (const [text, method, expected] of [
      ["HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-A:\t a b \r\n\r\nfine", "GET", "fine"],
      [
        "HTTP/1.1 200\r\nX:\r\nTransfer-Encoding: Chunked\r\n\r\n4;a=b\r\nfi\r\n\r\n2\r\nne\r\n0\r\nT: 1\r\n\r\n",
        "GET",
        "fi\r\nne",
      ],
      ["HTTP/1.1 103 Hint\r\nLink: x\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\n1", "POST", "1"],
      ["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", "HEAD", ""],
      ["HTTP/1.1 304 Same\r\nContent-Length: 4\r\n\r\n", "GET", ""],
      ["HTTP/1.1 204 Empty\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", ""],
    ] as const) {
      const whole = read(text, { method });
      assert.deepEqual(
        { body: whole.body, isComplete: whole.isComplete, excess: whole.excess, isKept: whole.isKept },
        { body: expected, isComplete: true, excess: 0, isKept: true },
      );
      for (let pieceBytes = 1; pieceBytes < 20; pieceBytes += 1)
        assert.deepEqual(read(text, { method, pieceBytes }), whole);
      assert.equal(read(`${text}EVIL`, { method }).excess, 4);
    }
    assert.deepEqual(read("HTTP/1.1 200 OK\r\nX-A: \t a b \r\nConnection: x\r\nx-a:\r\n\r\n").headers, [
      "X-A",
      "a b",
      "x-a",
      "",
    ]);
  });

  it("takes a body without a length to the end of the connection, and no other for complete then", () => {
    const endless = read("HTTP/1.0 200 OK\r\n\r\nhello", { hangsUp: true });
    assert.deepEqual([endless.body, endless.isComplete, endless.isKept], ["hello", true, false]);
    for (const cut of [
      "",
      "HTTP/1.1 200 OK\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfin",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n",
    ])
      assert.throws(() => read(cut, { hangsUp: true }), /hung up/, cut);
  });

  it("knows which connections go on", () => {
    const kept = (line: string, option: string): boolean | undefined =>
      read(`${line} 200 OK\r\nContent-Length: 0\r\n${option}\r\n`).isKept;
    assert.equal(kept("HTTP/1.1", ""), true);
    assert.equal(kept("HTTP/1.1", "Connection: x, Close\r\n"), false);
    assert.equal(kept("HTTP/1.1", "Connection: keep-alive\r\nConnection: close\r\n"), false);
    assert.equal(kept("HTTP/1.0", ""), false);
    assert.equal(kept("HTTP/1.0", "connection: Keep-Alive\r\n"), true);
    const chunks = "Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n";
    assert.equal(read(`HTTP/1.0 200 OK\r\n${chunks}`).isKept, false);
  });

  it("refuses what another reader could understand differently", () => {
    const good = "HTTP/1.1 200 OK\r\n";
    for (const text of [
      "HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n",
      "HTTP/2.0 200 OK\r\n\r\n",
      "ICY 200 OK\r\n\r\n",
      "HTTP/1.1 099 Low\r\n\r\n",
      "HTTP/1.1 2000 High\r\n\r\n",
      "HTTP/1.1  200 OK\r\n\r\n",
      "HTTP/1.1 200 O\x01K\r\n\r\n",
      `${good}Content-Length: 4\r\nContent-Length: 4\r\n\r\n`,
      `${good}Content-Length: 4, 4\r\n\r\n`,
      `${good}Content-Length: +4\r\n\r\n`,
      `${good}Content-Length: 0x4\r\n\r\n`,
      `${good}Content-Length:\r\n\r\n`,
      `${good}Content-Length: 99999999999999999999\r\n\r\n`,
      `${good}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n`,
      `${good}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n`,
      `${good}Transfer-Encoding: gzip, chunked\r\n\r\n`,
      `${good}Transfer-Encoding: identity\r\n\r\n`,
      `${good}Transfer-Encoding : chunked\r\n\r\n`,
      `${good} Transfer-Encoding: chunked\r\n\r\n`,
      `${good}X: a\r\n folded\r\n\r\n`,
      `${good}X: a\rTransfer-Encoding: chunked\r\n\r\n`,
      `${good}X: a\nTransfer-Encoding: chunked\r\n\r\n`,
      `${good}X: a\0b\r\n\r\n`,
      `${good}no colon\r\n\r\n`,
      `${good}: no name\r\n\r\n`,
      ...["", "x", "-1", "0x4", " 4", "4 ", "4;\n", "4\n", "fffffffffffffff"].map(
        (size) => `${good}Transfer-Encoding: chunked\r\n\r\n${size}\r\nfine\r\n0\r\n\r\n`,
      ),
      `${good}Transfer-Encoding: chunked\r\n\r\n4\r\nfine!\r\n0\r\n\r\n`,
      `${good}Transfer-Encoding: chunked\r\n\r\n4\r\nfine\n0\r\n\r\n`,
    ])
      for (const pieceBytes of [1, 7, text.length])
        assert.throws(() => read(text, { pieceBytes }), Error, text);
  });

  it("limits heads, interim answers and trailers together, and each chunk's line", () => {
    const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (const text of [
      `HTTP/1.1 200 OK\r\nX: ${"x".repeat(LIMIT)}`,
      `HTTP/1.1 200 OK\r\nX: ${"x".repeat(LIMIT)}\r\n\r\n`,
      "HTTP/1.1 100 Continue\r\n\r\n".repeat(10),
      `${chunked}4;${"x".repeat(LIMIT)}`,
      `${chunked}4;${"x".repeat(LIMIT)}\r\nfine\r\n`,
      `${chunked}0\r\n${"X: y\r\n".repeat(LIMIT / 6 + 1)}`,
    ])
      for (const pieceBytes of [1, text.length])
        assert.throws(() => read(text, { pieceBytes }), /of more than 200 bytes|without a size/, text);
    const many = (count: number): string =>
      `HTTP/1.1 200 OK\r\n${"a:\r\n".repeat(count)}Content-Length: 0\r\n\r\n`;
    assert.equal(read(many(999), { headLimit: 16_384 }).isComplete, true);
    assert.throws(() => read(many(1_000), { headLimit: 16_384 }), /more than 1000 headers/);
    assert.equal(read(`${chunked}${"1;x=y\r\n!\r\n".repeat(LIMIT)}0\r\n\r\n`).body.length, LIMIT);
  });
});
