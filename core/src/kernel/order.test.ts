import assert from "node:assert/strict";
import { it } from "node:test";
import { orderPlugins } from "./order.js";
import { createToken } from "./token.js";

const [A, B, C] = ["order-a", "order-b", "order-c"].map((id) => createToken<unknown>(id)) as [
  symbol,
  symbol,
  symbol,
];
const plugin = (name: string, requires: readonly symbol[], provides: readonly symbol[]) => ({
  name,
  requires: Object.fromEntries(requires.map((token, index) => [`service${index}`, token])),
  uses: {},
  provides,
});

it("providers come before those who require them, else the given order stays", () => {
  const plugins = [
    plugin("last", [B], []),
    plugin("free", [], []),
    plugin("middle", [A], [B]),
    plugin("first", [], [A]),
  ];
  const { ordered, problems } = orderPlugins(plugins, new Set());
  assert.deepEqual(problems, []);
  assert.deepEqual(
    ordered.map(({ name }) => name),
    ["first", "middle", "last", "free"],
  );
});

it("a plugin comes after those whose services it uses, which need not be there", () => {
  const user = { ...plugin("user", [], []), uses: { present: A, absent: B } };
  const { ordered, problems } = orderPlugins([user, plugin("provider", [], [A])], new Set());
  assert.deepEqual(problems, []);
  assert.deepEqual(
    ordered.map(({ name }) => name),
    ["provider", "user"],
  );
});

it("missing, doubled and circular requirements are all reported", () => {
  const plugins = [
    plugin("lonely", [C], []),
    plugin("one", [B], [A]),
    plugin("two", [A], [B]),
    plugin("twin", [], [A]),
  ];
  const messages = orderPlugins(plugins, new Set()).problems.map(({ message }) => message);
  assert.deepEqual(messages.toSorted(), [
    "plugin 'lonely' requires 'order-c', which no enabled plugin provides",
    "plugins 'one' and 'twin' both provide 'order-a'",
    "plugins require each other in a circle: one -> two -> one",
  ]);
});

it("built-in services need no plugin, and no plugin may replace them", () => {
  const { problems } = orderPlugins([plugin("user", [A], []), plugin("usurper", [], [A])], new Set([A]));
  assert.deepEqual(
    problems.map(({ message }) => message),
    ["plugin 'usurper' provides 'order-a', which the server itself provides"],
  );
});
