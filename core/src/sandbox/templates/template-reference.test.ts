import assert from "node:assert/strict";
import { it } from "node:test";
import { SandboxError } from "../../kernel/errors.js";
import { sandboxesConfig } from "../model/sandboxes-config.js";
import { AddedTemplates } from "./templates.js";
import { parseTemplateReference } from "./template-reference.js";

const { templates: settings } = sandboxesConfig.parse({
  templates: { "base": {}, "code-interpreter-v1": { aliases: ["ci", "acme/code"] }, "acme/web": {} },
});
const templates = new AddedTemplates(settings, () => undefined);

const found: readonly (readonly [reference: string, template: string])[] = [
  ["base", "base"],
  ["  Base\n", "base"],
  ["base:default", "base"],
  ["ci", "code-interpreter-v1"],
  ["ACME/code:default", "code-interpreter-v1"],
  ["acme/web", "acme/web"],
];

it("a template is found by name or alias, in any case, with the default tag or none", () => {
  for (const [reference, template] of found) assert.equal(templates.find(reference).name, template);
});

const refused: readonly (readonly [reference: string, code: string, message: RegExp])[] = [
  ["nope", "not_found", /^template 'nope' not found$/],
  ["other/base", "not_found", /^template 'other\/base' not found$/],
  ["constructor", "not_found", /^template 'constructor' not found$/],
  ["base:v2", "not_found", /^tag 'v2' does not exist for template 'base'$/],
  ["", "invalid_argument", /^Invalid template reference: /],
  ["a/b/c", "invalid_argument", /^Invalid template reference: /],
  ["base:", "invalid_argument", /^Invalid template reference: /],
  ["base:a:b", "invalid_argument", /^Invalid template reference: /],
  ["/base", "invalid_argument", /^Invalid template reference: /],
  ["ba se", "invalid_argument", /^Invalid template reference: /],
  ["../etc", "invalid_argument", /^Invalid template reference: /],
  ["base:11111111-2222-3333-4444-555555555555", "not_found", /^tag '1{8}-.*' does not exist/],
  ["x".repeat(100_000), "invalid_argument", /^Invalid template reference: /],
];

it("an invalid template reference is refused with E2B's texts", () => {
  for (const [reference, code, message] of refused) {
    assert.throws(
      () => templates.find(reference),
      (error: unknown) => error instanceof SandboxError && error.code === code && message.test(error.message),
      `for '${reference.slice(0, 50)}'`,
    );
  }
});

it("a template of the configuration goes before one of a source, and has the build of the source", () => {
  const image = { id: "image", user: "user" };
  const built = { name: "t1", aliases: ["mine"], limits: {}, build: { id: "b1", image, limits: {} } };
  const sourced = new AddedTemplates(settings, () => undefined);
  sourced.add({
    all: (tenant) => (tenant === "owner" ? [built] : []),
    find: ({ name }, tenant) => (tenant === "owner" && ["mine", "base"].includes(name) ? built : undefined),
    builds: (name) => name === "base",
    buildOf: (name) => (name === "base" ? { id: "b2", image, limits: {} } : undefined),
  });
  assert.equal(sourced.find("mine", "owner"), built);
  assert.throws(() => sourced.find("mine", "other"), /^SandboxError: template 'mine' not found$/);
  assert.deepEqual([sourced.find("base", "owner").name, sourced.find("base").build?.id], ["base", "b2"]);
  assert.equal(sourced.find("ci").build, undefined);
  assert.deepEqual([sourced.isBuilt("base"), sourced.isBuilt("ci")], [true, false]);
  assert.deepEqual(
    [sourced.all().length, sourced.all("owner").at(-1)?.name, sourced.all("other").length],
    [3, "t1", 3],
  );
});

it("a name that is given has no build's id for a tag", () => {
  assert.equal(parseTemplateReference("a:1", { isNew: true }).tag, "1");
  assert.throws(
    () => parseTemplateReference("a:11111111-2222-3333-4444-555555555555", { isNew: true }),
    /a tag cannot be a UUID/,
  );
});

it("settings that contradict themselves are refused", () => {
  const ambiguous = sandboxesConfig.safeParse({ templates: { base: {}, other: { aliases: ["base"] } } });
  assert.match(String(ambiguous.error), /'base' is already taken/);
  assert.match(
    String(sandboxesConfig.safeParse({ defaultTimeout: "2d" }).error),
    /longer than maximumTimeout/,
  );
});
