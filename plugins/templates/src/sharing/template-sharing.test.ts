import assert from "node:assert/strict";
import { beforeEach, describe, it } from "node:test";
import type { SharedTemplate } from "@coppice/core";
import type { FoundBuild } from "./shared-catalog.js";
import { sharedText } from "./shared-record.js";
import { TemplateSharing, type TemplateSharingOptions } from "./template-sharing.js";

const [OLD, NEW] = ["11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"];
const ID = "t".repeat(20);
const REFERENCE = { name: "app", tag: "default" };
const BY_ID = { name: ID, tag: "default" };

function told(revision: number, build: string, more: object = {}): SharedTemplate {
  const digest = `sha256:${"0".repeat(64)}`;
  const value = sharedText({
    store: "elsewhere",
    owner: "me",
    namespace: "me",
    alias: "app",
    isPublic: false,
    createdAtMs: 1,
    tags: { default: build },
    builds: { [build]: { digest, backend: "memory", limits: { cpuCount: 1, memoryMiB: 128 } } },
    ...more,
  });
  return { value, revision, keeper: "other" };
}

describe("a template of another server, whose watch is late", () => {
  let [watched, stored]: [SharedTemplate, SharedTemplate | undefined] = [told(1, OLD), told(1, OLD)];
  let fetched: string[] = [];
  let sharing: TemplateSharing;

  beforeEach(() => {
    [watched, stored, fetched] = [told(1, OLD), told(1, OLD), []];
    const records = { entries: () => [[ID, watched]], get: () => watched, read: async () => stored };
    const copies = {
      find: (id: string) =>
        id === OLD
          ? { id, result: { image: "old", context: { user: "u", environment: {} }, bytes: 1 } }
          : undefined,
      canFetch: () => true,
      fetch: async ({ buildId }: FoundBuild) => {
        await new Promise((resolve) => setImmediate(resolve));
        fetched.push(buildId);
      },
    };
    sharing = new TemplateSharing({ shared: { records }, copies } as unknown as TemplateSharingOptions);
  });

  it("is read again for each sandbox: the tag may lead elsewhere by now", async () => {
    const facts = sharing.find(REFERENCE, "me");
    assert.deepEqual([facts?.build?.id, facts?.remote?.isHere], [OLD, true]);
    stored = told(2, NEW);
    await facts?.remote?.fetch();
    assert.deepEqual(fetched, [NEW]);
    const now = sharing.find(REFERENCE, "me");
    assert.deepEqual([now?.build?.id, now?.remote?.isHere], [NEW, false]);
  });

  it("is not found once it was removed, or is private again", async () => {
    watched = told(1, OLD, { isPublic: true });
    const gone = [
      () => undefined,
      (revision: number) => ({ ...told(revision, OLD), value: undefined }),
      (revision: number) => told(revision, OLD),
    ];
    for (const next of gone) {
      const facts = sharing.find(BY_ID, "other");
      assert.ok(facts);
      stored = next(watched.revision + 1);
      await assert.rejects(async () => facts.remote?.fetch(), { reason: "template_not_found" });
      assert.equal(sharing.find(BY_ID, "other"), undefined);
      watched = told(watched.revision + 2, OLD, { isPublic: true });
    }
    assert.deepEqual(fetched, []);
  });

  it("is the same for a client that does not wait for its transfer, which goes on", async () => {
    const facts = sharing.find(REFERENCE, "me");
    await assert.rejects(async () => facts?.remote?.fetch(AbortSignal.abort(new Error("gone"))), /gone/);
    assert.deepEqual(fetched, []);
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(fetched, [OLD]);
  });

  it("is found by its owner's names, by its id, and for others only when it is public", () => {
    const names = ["app", "me/app", ID, "other/app", "constructor"];
    const found = (tenant: string) =>
      names.map((name) => sharing.find({ ...REFERENCE, name }, tenant) !== undefined);
    assert.deepEqual(found("me"), [true, true, true, false, false]);
    assert.deepEqual(found("other"), [false, false, false, false, false]);
    watched = told(2, OLD, { isPublic: true });
    assert.deepEqual(found("other"), [false, true, true, false, false]);
    assert.throws(() => sharing.find({ ...REFERENCE, tag: "constructor" }, "me"), {
      reason: "template_tag_not_found",
    });
    assert.equal(sharing.find({ ...REFERENCE, tag: OLD }, "me")?.build?.id, OLD);
  });
});
