import assert from "node:assert/strict";
import { it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import { asciiBytes, asciiJson, isPlain } from "./ascii-json.js";
import { membersOf, membersOfLong } from "./raw-json.js";

const text = (json: string): Record<string, string> =>
  Object.fromEntries([...membersOf(Buffer.from(json))].map(([name, value]) => [name, value.toString()]));

it("values keep the digits they were written with", () => {
  assert.deepEqual(text('{"a": 1.0, "b": 12345678901234567890, "c": [1e5, {"d": -0.50}], "e": null}'), {
    a: "1.0",
    b: "12345678901234567890",
    c: '[1e5, {"d": -0.50}]',
    e: "null",
  });
  assert.deepEqual(text(" {} "), {});
  assert.deepEqual(text('{"a\\u0062": 1, "ab": 2}'), { ab: "2" });
});

it("anything but a JSON object is refused, so that it cannot forge a line", () => {
  const refused = [
    "",
    "[]",
    "1",
    "{",
    '{"a"}',
    '{"a":}',
    '{"a":1,}',
    '{"a":1}x',
    '{"a":01}',
    '{"a":1.}',
    '{"a":1e}',
    '{"a":+1}',
    '{"a":NaN}',
    '{"a":tru}',
    '{"a":"\n"}',
    '{"a":"\\x"}',
    '{"a":"\\u12g4"}',
    '{"a":"x}',
    '{"a":[1,]}',
    '{"a":{"b"}}',
    '{"a":[}',
    "{a:1}",
    `{"a":${"[".repeat(600)}${"]".repeat(600)}}`,
  ];
  for (const json of refused) assert.throws(() => membersOf(Buffer.from(json)), SyntaxError, json);
});

it("random JSON: the same members as JSON.parse finds, the same values after ASCII", () => {
  const random = new SeededRandom(20_260_101);
  for (let round = 0; round < 3000; round++) {
    const value = Object.fromEntries(
      Array.from({ length: random.below(4) }, (_, index) => [
        `${index}${randomText(random)}`,
        randomValue(random, 3),
      ]),
    );
    const json = JSON.stringify(value, null, random.below(3));
    const members = membersOf(Buffer.from(json));
    const again = Object.fromEntries(
      [...members].map(([name, raw]) => {
        const ascii = asciiBytes(raw).toString("latin1");
        assert.match(ascii, /^[\x20-\x7e]*$/);
        return [name, JSON.parse(ascii) as unknown];
      }),
    );
    assert.deepEqual(again, value, json);
  }
});

it("mutated JSON is either refused or read as by JSON.parse", () => {
  const random = new SeededRandom(7);
  for (let round = 0; round < 5000; round++) {
    const json = Buffer.from(JSON.stringify({ a: randomValue(random, 3), b: randomText(random) }));
    json[random.below(json.length)] = random.below(128);
    let expected: unknown;
    try {
      expected = JSON.parse(json.toString());
    } catch {
      assert.throws(() => membersOf(json), SyntaxError, json.toString());
      continue;
    }
    const members = membersOf(json);
    assert.deepEqual(
      Object.fromEntries(
        [...members].map(([name, bytes]) => [name, JSON.parse(bytes.toString()) as unknown]),
      ),
      expected,
    );
  }
});

it("long strings, at any alignment: every byte that needs an escape is found, also across slices", async () => {
  const random = new SeededRandom(11);
  const odd = ['"', "\\", "\n", "\u007f", "é", "\u001f", "\\u00e9", '\\"'];
  for (let round = 0; round < 300; round++) {
    const size = round < 290 ? random.below(600) : 1_500_000 + random.below(9);
    const at = random.below(size + 1);
    const inserted = round % 3 === 0 ? "" : (odd[random.below(odd.length)] ?? "");
    const text = `{"a": "${"x".repeat(at)}${inserted}${"y".repeat(size - at)}", "b": 1.0}`;
    const shift = random.below(5);
    const json = Buffer.concat([Buffer.alloc(shift), Buffer.from(text)]).subarray(shift);
    let expected: { a: string } | undefined;
    try {
      expected = JSON.parse(text) as { a: string };
    } catch {
      assert.throws(() => membersOf(json), SyntaxError, `round ${round}`);
      await assert.rejects(membersOfLong(json), SyntaxError, `round ${round}`);
      continue;
    }
    for (const members of [membersOf(json), await membersOfLong(json)]) {
      const value = members.get("a");
      assert.ok(value && JSON.parse(value.toString()) === expected.a, `round ${round}`);
      assert.equal(isPlain(value), /^[\x20-\x7e]*$/.test(value.toString()), `round ${round}`);
      assert.equal(members.get("b")?.toString(), "1.0");
    }
  }
  for (const run of [" ".repeat(100_000), "1".repeat(100_000)])
    assert.throws(() => membersOf(Buffer.from(`{"a": ${run}1}`)), SyntaxError);
});

it("bytes that are no UTF-8 become a replacement character", () => {
  const [value] = membersOf(
    Buffer.concat([Buffer.from('{"a":"'), Buffer.from([0xff, 0x41]), Buffer.from('"}')]),
  ).values();
  assert.ok(value);
  assert.equal(asciiBytes(value).toString(), '"\\ufffdA"');
});

it("asciiJson escapes what a line reader might take for a line end", () => {
  assert.equal(asciiJson("a\u0085\u2028é😀\n"), '"a\\u0085\\u2028\\u00e9\\ud83d\\ude00\\n"');
});

function randomText(random: SeededRandom): string {
  const alphabet = ["a", '"', "\\", "\n", "\u0000", "é", "\u2028", "😀", "\u007f", "/", "'", "{", "]", ","];
  return Array.from({ length: random.below(8) }, () => alphabet[random.below(alphabet.length)]).join("");
}

function randomValue(random: SeededRandom, depth: number): unknown {
  switch (random.below(depth > 0 ? 7 : 5)) {
    case 0:
      return null;
    case 1:
      return random.below(2) === 1;
    case 2:
      return (random.below(2000) - 1000) / 10 ** random.below(5);
    case 3:
      return randomText(random);
    case 4:
      return random.below(1_000_000) * 1e300;
    case 5:
      return Array.from({ length: random.below(4) }, () => randomValue(random, depth - 1));
    default:
      return Object.fromEntries(
        Array.from({ length: random.below(4) }, (_, index) => [
          `${index}${randomText(random)}`,
          randomValue(random, depth - 1),
        ]),
      );
  }
}

it("very many values are scanned in more than one turn of the event loop, and very many members are refused", async () => {
  let turns = 0;
  const count = (): void => {
    turns += 1;
    counting = setImmediate(count);
  };
  let counting = setImmediate(count);
  await membersOfLong(Buffer.from(`{"a":[${"1,".repeat(50_000)}1]}`));
  clearImmediate(counting);
  assert.ok(turns > 10, `${turns} turns`);
  const many = Array.from({ length: 20_000 }, (_, index) => `"${index}":1`).join();
  await assert.rejects(membersOfLong(Buffer.from(`{${many}}`)), SyntaxError);
});
