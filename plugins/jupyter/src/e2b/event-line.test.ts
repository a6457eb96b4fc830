import assert from "node:assert/strict";
import { it } from "node:test";
import { asciiJson } from "../json/ascii-json.js";
import { lineOf } from "./execution-stream.js";
import { eventOf, type ExecutionEvent, limitOutput } from "../kernel/execution-event.js";

const event = (
  type: string,
  content: string,
  date?: string,
  maxErrorBytes = 1000,
): Promise<ExecutionEvent | undefined> =>
  eventOf(
    {
      id: "1",
      type,
      date,
      parentId: "0",
      session: undefined,
      parentType: undefined,
      parentSession: undefined,
      header: Buffer.alloc(0),
      parentHeader: Buffer.alloc(0),
      metadata: Buffer.from("{}"),
      content: Buffer.from(content),
      buffers: [],
    },
    maxErrorBytes,
  );

const textOf = (made: ExecutionEvent): string => Buffer.concat([...lineOf(made)]).toString("latin1");

async function line(type: string, content: string): Promise<string> {
  const made = await event(type, content, "2026-01-02T03:04:05.678901Z");
  assert.ok(made);
  return textOf(made);
}

it("lines look exactly like those of E2B's server", async () => {
  assert.equal(
    await line("execute_input", '{"code": "1", "execution_count": 2}'),
    '{"type": "number_of_executions", "execution_count": 2}\n',
  );
  assert.equal(
    await line("stream", '{"name": "stdout", "text": "h\u00e9 \u20ac\\n"}'),
    '{"type": "stdout", "text": "h\\u00e9 \\u20ac\\n", "timestamp": "2026-01-02T03:04:05.678901+00:00"}\n',
  );
  assert.equal(
    await line(
      "execute_result",
      '{"data": {"application/json": {"a": 1.0}, "text/plain": "{\'a\': 1.0}"}, "metadata": {}}',
    ),
    '{"type": "result", "text": "{\'a\': 1.0}", "json": {"a": 1.0}, "extra": {}, "is_main_result": true}\n',
  );
  assert.equal(
    await line(
      "display_data",
      '{"data": {"x/y": 12345678901234567890, "image/png": "aGk=", "text/html": null}}',
    ),
    '{"type": "result", "png": "aGk=", "extra": {"x/y": 12345678901234567890}, "is_main_result": false}\n',
  );
  assert.equal(
    await line("error", '{"ename": "E", "evalue": "v", "traceback": ["a", "\u00e9"]}'),
    '{"type": "error", "name": "E", "value": "v", "traceback": "a\\u00e9"}\n',
  );
});

it("one pair of equal quotes around a text is the repr's and is removed", async () => {
  const cases = [
    ["'hello'", "hello"],
    ['"it\'s"', "it's"],
    ["''", ""],
    ["'", "'"],
    ["'a\"", "'a\""],
    ["''a''", "'a'"],
    ["[1]", "[1]"],
    ["'\\\\'", "\\\\"],
  ];
  for (const [text, shown] of cases) {
    const json = await line("execute_result", JSON.stringify({ data: { "text/plain": text } }));
    assert.equal((JSON.parse(json) as { text: string }).text, shown, text);
  }
});

it("a kernel cannot forge a line", async () => {
  await assert.rejects(
    event("stream", '{"name": "stdout", "text": "x"}\n{"type": "end_of_execution"}'),
    SyntaxError,
  );
  await assert.rejects(event("stream", '{"name": "stdout", "text": "x\n"}'), SyntaxError);
  assert.equal(await event("stream", '{"name": "stdout", "text": {"a": 1}}'), undefined);
  assert.equal(await event("stream", '{"name": "stdin", "text": "x"}'), undefined);
  assert.equal((await line("display_data", '{"data": {"x/y": [1,\n2]}}')).split("\n").length, 2);
  assert.equal((await line("display_data", '{"data": {"a\\": 1, \\"b\\n": 1}}')).split("\n").length, 2);
  const forged = await event("stream", '{"name": "stdout", "text": "x"}', '"}\n{"type": "forged"}');
  assert.ok(forged && !textOf(forged).includes("forged"));
});

it("output past the limit is dropped with one note, the end is not", async () => {
  const stdout = await event("stream", `{"name": "stdout", "text": "${"x".repeat(40)}"}`);
  const error = await event("error", '{"ename": "E", "evalue": "", "traceback": []}');
  assert.ok(stdout && error);
  async function* events(): AsyncGenerator<ExecutionEvent> {
    for (let count = 0; count < 5; count++) yield stdout as ExecutionEvent;
    yield error as ExecutionEvent;
  }
  const seen = await Array.fromAsync(limitOutput(events(), 100));
  assert.deepEqual(
    seen.map(({ type }) => type),
    ["stdout", "stdout", "stderr", "error"],
  );
  assert.match(textOf(seen[2] as ExecutionEvent), /truncated: this execution wrote more than 100 bytes/);
});

it("a long line comes in pieces that no character is cut by", async () => {
  for (const text of ["x".repeat(700_000), "é😀€".repeat(200_000), `a${"😀".repeat(150_000)}`]) {
    const made = await event(
      "execute_result",
      JSON.stringify({ data: { "text/plain": `'${text}'`, "x/y": text } }),
    );
    assert.ok(made);
    const pieces = [...lineOf(made)];
    assert.ok(pieces.length > 3 && pieces.every(({ length }) => length < 2_000_000));
    const ascii = Buffer.concat(pieces).toString("latin1");
    assert.match(ascii, /^[\x20-\x7e]*\n$/);
    const { text: shown, extra } = JSON.parse(ascii) as { text: string; extra: Record<string, string> };
    assert.ok(shown === text && extra["x/y"] === text);
  }
});

it("a large error keeps the beginnings of its texts, wherever they are cut", async () => {
  const frames = ['File "a.py"\n', "é\u{1f600}\\\u0001", "x".repeat(300)];
  const error = {
    ename: "E",
    evalue: '\u{1f600}\u0001é"'.repeat(200),
    traceback: frames.concat(frames, frames),
  };
  for (const written of [JSON.stringify(error), asciiJson(error)]) {
    for (let maxErrorBytes = 60; maxErrorBytes < 1600; maxErrorBytes++) {
      const made = await event("error", written, undefined, maxErrorBytes);
      assert.ok(made?.type === "error");
      assert.equal(made.name, "E");
      for (const [told, whole] of [
        [made.value, error.evalue],
        [made.traceback.join(""), error.traceback.join("")],
      ] as const) {
        const [, beginning, marker] = /^([^]*?)(\n\[truncated: \d+ more bytes\])?$/.exec(told) ?? [];
        assert.ok(beginning !== undefined && whole.startsWith(beginning.replace(/\ufffd$/, "")), told);
        assert.equal(marker === undefined, beginning === whole, told);
        assert.ok(marker === undefined || beginning.length >= maxErrorBytes / 12 - 4, told);
      }
    }
  }
});
