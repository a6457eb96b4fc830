import assert from "node:assert/strict";
import { it } from "node:test";
import { SandboxError } from "../../kernel/errors.js";
import { sandboxesConfig } from "../model/sandboxes-config.js";
import { findTemplate } from "./template-reference.js";

const { templates } = sandboxesConfig.parse({
  templates: { "base": {}, "code-interpreter-v1": { aliases: ["ci", "acme/code"] }, "acme/web": {} },
});

const found: readonly (readonly [reference: string, template: string])[] = [
  ["base", "base"],
  ["  Base\n", "base"],
  ["base:default", "base"],
  ["ci", "code-interpreter-v1"],
  ["ACME/code:default", "code-interpreter-v1"],
  ["acme/web", "acme/web"],
];

it("a template is found by name or alias, in any case, with the default tag or none", () => {
  for (const [reference, template] of found) assert.equal(findTemplate(templates, reference).name, template);
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
  ["base:11111111-2222-3333-4444-555555555555", "invalid_argument", /^Invalid template reference: /],
  ["x".repeat(100_000), "invalid_argument", /^Invalid template reference: /],
];

it("an invalid template reference is refused with E2B's texts", () => {
  for (const [reference, code, message] of refused) {
    assert.throws(
      () => findTemplate(templates, reference),
      (error: unknown) => error instanceof SandboxError && error.code === code && message.test(error.message),
      `for '${reference.slice(0, 50)}'`,
    );
  }
});

it("settings that contradict themselves are refused", () => {
  const ambiguous = sandboxesConfig.safeParse({ templates: { base: {}, other: { aliases: ["base"] } } });
  assert.match(String(ambiguous.error), /'base' is already taken/);
  assert.match(
    String(sandboxesConfig.safeParse({ defaultTimeout: "2d" }).error),
    /longer than maximumTimeout/,
  );
});
