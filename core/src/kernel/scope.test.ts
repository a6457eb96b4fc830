import assert from "node:assert/strict";
import { it } from "node:test";
import { inject, injectable, Scope } from "./scope.js";
import { createToken } from "./token.js";

interface Greeting {
  readonly text: string;
}
const Greeting = createToken<Greeting>("test-greeting");
const Missing = createToken<unknown>("test-missing");

@injectable()
class Greeter {
  constructor(@inject(Greeting) readonly greeting: Greeting) {}
}

@injectable()
class LoudGreeter extends Greeter {}

@injectable()
class Incomplete {
  constructor(
    @inject(Greeting) readonly greeting: Greeting,
    @inject(Missing) readonly missing: unknown,
    readonly forgotten: string,
  ) {}
}

it("tokens made twice with the same id are the same token", () => {
  assert.equal(createToken("test-greeting"), Greeting);
});

it("a class is built once, with what the scope holds", () => {
  const scope = new Scope("demo");
  scope.bindValue(Greeting, { text: "hello" });
  scope.bindClass(Greeter, Greeter);
  const greeter = scope.resolve<Greeter>(Greeter);
  assert.equal(greeter.greeting.text, "hello");
  assert.equal(scope.resolve(Greeter), greeter);
});

it("a subclass without a constructor is built with its parent's parameters", () => {
  const scope = new Scope("demo");
  scope.bindValue(Greeting, { text: "hello" });
  scope.bindClass(LoudGreeter, LoudGreeter);
  assert.deepEqual(scope.unfilled(), []);
  assert.equal(scope.resolve<LoudGreeter>(LoudGreeter).greeting.text, "hello");
});

it("a scope is sealed: another scope's services and unbound classes cannot be resolved", () => {
  const other = new Scope("other");
  other.bindValue(Greeting, { text: "mine" });
  other.bindClass(Greeter, Greeter);
  const scope = new Scope("demo");
  assert.throws(() => scope.resolve(Greeting), /plugin 'demo' neither binds nor requires 'test-greeting'/);
  assert.throws(() => scope.resolve(Greeter), /neither binds nor requires 'Greeter'/);
});

it("two scopes build two instances of the same class", () => {
  const scopes = ["one", "two"].map((text) => {
    const scope = new Scope(text);
    scope.bindValue(Greeting, { text });
    scope.bindClass(Greeter, Greeter);
    return scope;
  });
  assert.deepEqual(
    scopes.map((scope) => scope.resolve<Greeter>(Greeter).greeting.text),
    ["one", "two"],
  );
});

it("every constructor parameter that cannot be filled is named", () => {
  const scope = new Scope("demo");
  scope.bindValue(Greeting, { text: "hello" });
  scope.bindClass(Incomplete, Incomplete);
  assert.deepEqual(scope.unfilled(), [
    "Incomplete: constructor parameter 2 needs 'test-missing', which 'demo' neither binds nor requires",
    "Incomplete: constructor parameter 3 has no @inject(Token)",
  ]);
});

it("binding a key twice is refused", () => {
  const scope = new Scope("demo");
  scope.bindValue(Greeting, { text: "hello" });
  assert.throws(() => scope.bindValue(Greeting, { text: "again" }), /binds 'test-greeting' twice/);
});
