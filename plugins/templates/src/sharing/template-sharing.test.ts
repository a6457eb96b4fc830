import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { parseTemplateReference, type SharedTemplates } from "@coppice/core";
import { sharedText } from "./shared-record.js";
import { TemplateSharing, type TemplateSharingOptions } from "./template-sharing.js";

const BUILD = "6f1c0b0e-4d3f-4a53-8a53-0f6c37c5b6aa";
const NAMES = ["web", "id-of-web", `id-of-web:${BUILD}`, "me/web", "me/web:v1", `me/web:${BUILD}`];

/** A server that has nothing of a template of 'me' but the other server's word. */
function sharing({ isPublic = false, isReachable = true } = {}) {
  const builds = { [BUILD]: { backend: "memory", limits: { cpuCount: 1, memoryMiB: 512 } } };
  const tags = { default: BUILD, v1: BUILD };
  const who = { store: "", owner: "me", namespace: "me", alias: "web", isPublic, createdAtMs: 0 };
  const value = sharedText({ ...who, tags, builds });
  const entries = [["id-of-web", { value, revision: 1, keeper: "other" }]];
  return new TemplateSharing({
    shared: { records: { entries: () => entries } } as unknown as SharedTemplates,
    copies: { find: () => undefined, canFetch: () => isReachable },
    store: () => ({ templates: { find: () => undefined } }),
  } as unknown as TemplateSharingOptions);
}

describe("a template of another server", () => {
  it("is found by its owner by each of its names, and by others only when it is public", () => {
    const found = (name: string, tenant: string, isPublic: boolean) =>
      sharing({ isPublic }).find(parseTemplateReference(name), tenant)?.name;
    for (const name of NAMES) {
      assert.equal(found(name, "me", false), "id-of-web", name);
      assert.equal(found(name, "you", false), undefined, name);
      // An alias alone is the owner's.
      assert.equal(found(name, "you", true), name === "web" ? undefined : "id-of-web", name);
    }
    assert.equal(found(BUILD, "you", true), undefined);
  });

  it("is not said to be missing where its registry does not answer, but to strangers", () => {
    const unreached = sharing({ isReachable: false });
    for (const name of NAMES) {
      const asked = (tenant: string) => unreached.find(parseTemplateReference(name), tenant);
      assert.throws(() => asked("me"), { code: "unavailable", reason: "template_not_fetched" });
      assert.equal(asked("you"), undefined);
    }
  });
});
