import assert from "node:assert/strict";
import { test } from "node:test";
import { lineOf } from "./event-line.js";
import { eventOf } from "./execution-event.js";
import { limitOutput } from "./output-limit.js";
import type { ExecutionEvent } from "./execution-event.js";

const event = (type: string, content: string, date?: string): ExecutionEvent | undefined =>
  eventOf({
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
  });

function line(type: string, content: string): string {
  const made = event(type, content, "2026-01-02T03:04:05.678901Z");
  assert.ok(made);
  return lineOf(made).toString("latin1");
}

test("lines look exactly like those of E2B's server", () => {
  assert.equal(
    line("execute_input", '{"code": "1", "execution_count": 2}'),
    '{"type": "number_of_executions", "execution_count": 2}\n',
  );
  assert.equal(
    line("stream", '{"name": "stdout", "text": "h\u00e9 \u20ac\\n"}'),
    '{"type": "stdout", "text": "h\\u00e9 \\u20ac\\n", "timestamp": "2026-01-02T03:04:05.678901+00:00"}\n',
  );
  assert.equal(
    line(
      "execute_result",
      '{"data": {"application/json": {"a": 1.0}, "text/plain": "{\'a\': 1.0}"}, "metadata": {}}',
    ),
    '{"type": "result", "text": "{\'a\': 1.0}", "json": {"a": 1.0}, "extra": {}, "is_main_result": true}\n',
  );
  assert.equal(
    line("display_data", '{"data": {"x/y": 12345678901234567890, "image/png": "aGk=", "text/html": null}}'),
    '{"type": "result", "png": "aGk=", "extra": {"x/y": 12345678901234567890}, "is_main_result": false}\n',
  );
  assert.equal(
    line("error", '{"ename": "E", "evalue": "v", "traceback": ["a", "\u00e9"]}'),
    '{"type": "error", "name": "E", "value": "v", "traceback": "a\\u00e9"}\n',
  );
});

test("one pair of the same quotes around a text is the repr's and goes", () => {
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
    const json = line("execute_result", JSON.stringify({ data: { "text/plain": text } }));
    assert.equal((JSON.parse(json) as { text: string }).text, shown, text);
  }
});

test("a kernel cannot forge a line", () => {
  assert.throws(
    () => event("stream", '{"name": "stdout", "text": "x"}\n{"type": "end_of_execution"}'),
    SyntaxError,
  );
  assert.throws(() => event("stream", '{"name": "stdout", "text": "x\n"}'), SyntaxError);
  assert.equal(event("stream", '{"name": "stdout", "text": {"a": 1}}'), undefined);
  assert.equal(event("stream", '{"name": "stdin", "text": "x"}'), undefined);
  assert.equal(line("display_data", '{"data": {"x/y": [1,\n2]}}').split("\n").length, 2);
  assert.equal(line("display_data", '{"data": {"a\\": 1, \\"b\\n": 1}}').split("\n").length, 2);
  const forged = event("stream", '{"name": "stdout", "text": "x"}', '"}\n{"type": "forged"}');
  assert.ok(forged && !lineOf(forged).includes("forged"));
});

test("output past the limit is dropped with one note, the end is not", async () => {
  const stdout = event("stream", `{"name": "stdout", "text": "${"x".repeat(40)}"}`);
  const error = event("error", '{"ename": "E", "evalue": "", "traceback": []}');
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
  assert.match(
    lineOf(seen[2] as ExecutionEvent).toString(),
    /truncated: this execution wrote more than 100 bytes/,
  );
});
