import assert from "node:assert/strict";
import { describe, it } from "node:test";
import {
  parseTemplateReference,
  SandboxError,
  type SharedTemplates,
  type SnapshotRecord,
} from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { sharedText } from "./shared-catalog.js";
import { TemplateSharing, type TemplateSharingOptions } from "./template-sharing.js";

const BUILD = "6f1c0b0e-4d3f-4a53-8a53-0f6c37c5b6aa";
const NEXT = "0d5d3c62-6c0a-4f0e-9a34-54ee43d9bbd0";
const NAMES = ["web", "id-of-web", `id-of-web:${BUILD}`, "me/web", "me/web:v1", `me/web:${BUILD}`];

const facts = { backend: "memory", limits: { cpuCount: 1, memoryMiB: 512 } };

/** What the other server tells of a template of 'me'. */
function told(tag: string, isPublic = false): string {
  const builds = { [BUILD]: facts, [NEXT]: facts };
  const tags = { default: tag, v1: BUILD };
  const who = { store: "", owner: "me", namespace: "me", alias: "web", isPublic, createdAtMs: 0 };
  return sharedText({ ...who, tags, builds });
}

/** A server that has nothing of it but the other server's word. */
function sharing({ isPublic = false, isReachable = true } = {}) {
  const entries = [["id-of-web", { value: told(BUILD, isPublic), revision: 1, keeper: "other" }]];
  return new TemplateSharing({
    shared: { records: { entries: () => entries } } as unknown as SharedTemplates,
    copies: { find: () => undefined, canFetch: () => isReachable },
    store: () => ({ templates: { has: () => false } }),
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

it("a sandbox waits for the build that its template's name stands for after the transfer", async () => {
  let record = { value: told(BUILD), revision: 1, keeper: "other" };
  const fetched: string[] = [];
  const copies = {
    canFetch: () => true,
    find: (id: string) => (fetched.includes(id) ? { id, result: { image: id, context: {} } } : undefined),
    fetch: async ({ buildId }: { readonly buildId: string }) => {
      fetched.push(buildId);
      record = { value: told(NEXT), revision: 2, keeper: "other" };
    },
  };
  const server = new TemplateSharing({
    shared: { records: { entries: () => [["id-of-web", record]], read: async () => record } },
    copies,
  } as unknown as TemplateSharingOptions);
  const find = () => server.find(parseTemplateReference("web"), "me");
  await find()?.remote?.fetch();
  assert.deepEqual(fetched, [BUILD, NEXT]);
  assert.equal(find()?.build?.image.id, NEXT);
});

const INTERVAL_MS = 1000;

/** A server with a template of two builds that are in no registry yet. */
function keeper({
  push,
  put,
}: {
  readonly push: (reference: string) => Promise<string>;
  readonly put?: () => void;
}) {
  const clock = fakeClock();
  const template = { id: "t", owner: "me", namespace: "me", alias: "web", isPublic: false, createdAtMs: 0 };
  const builds = new Map<string, { digest?: string }>([
    ["large", {}],
    ["small", {}],
  ]);
  const pushed: string[] = [];
  const told = new Map<string, string | undefined>();
  let looks = 0;
  const known = (id: string) => {
    const value = told.get(id);
    return told.has(id) ? { value, revision: 1, keeper: "self" } : undefined;
  };
  const options = {
    clock,
    intervalMs: INTERVAL_MS,
    registry: "registry.example.com/fleet",
    log: { info: () => {}, warn: () => {} },
    copies: { retain: () => {}, stop: async () => {} },
    keeper: { sweep: async () => void (looks += 1) },
    buildsInUse: () => [],
    pushes: {
      prepare: ({ target }: { readonly target: { readonly reference: string } }) => ({
        run: () => {
          pushed.push(target.reference);
          return push(target.reference);
        },
      }),
    },
    shared: {
      records: {
        entries: () => [...told.keys()].map((id) => [id, known(id)]),
        get: known,
        read: async (id: string) => known(id),
        put: async (id: string, value: string | undefined) => {
          told.set(id, value);
          put?.();
        },
      },
    },
    store: () => ({
      secret: () => "",
      templates: {
        all: () => [template],
        get: ({ id }: { readonly id: string }) => (id === "t" ? template : undefined),
        has: ({ id }: { readonly id: string }) => id === "t",
      },
      tags: { list: () => [...builds.keys()].map((id) => ({ name: id, buildId: id })) },
      builds: {
        has: () => true,
        get: ({ id }: { readonly id: string }) => ({
          ...builds.get(id),
          backend: "memory",
          limits: { cpuCount: 1, memoryMiB: 512 },
        }),
        unfinished: () => [],
        update: ({ id }: { readonly id: string }, change: { readonly digest?: string }) =>
          void builds.set(id, change),
      },
    }),
  };
  const made = new TemplateSharing(options as unknown as TemplateSharingOptions);
  return { made, clock, pushed, told, looks: () => looks };
}

describe("the server that keeps templates", () => {
  const digest = `sha256:${"0".repeat(64)}`;

  it("packs a build once that no registry can have, and shares the others", async () => {
    const { made, clock, pushed, told } = keeper({
      push: async (reference) => {
        if (reference.endsWith("large")) throw new SandboxError("image_too_large", "it has holes");
        return digest;
      },
    });
    made.start();
    await clock.advance(5 * INTERVAL_MS);
    assert.deepEqual(pushed, ["registry.example.com/fleet/t:large", "registry.example.com/fleet/t:small"]);
    const { builds } = JSON.parse(told.get("t") ?? "") as { builds: Record<string, { digest?: string }> };
    assert.deepEqual([builds["large"]?.digest, builds["small"]?.digest], [undefined, digest]);
    await made.stop();
  });

  it("looks once more, and not many times, after a registry that was silent", async () => {
    const { promise, resolve } = Promise.withResolvers<string>();
    const { made, clock, looks } = keeper({ push: () => promise });
    made.start();
    await clock.advance(20 * INTERVAL_MS);
    assert.equal(looks(), 0);
    resolve(digest);
    await clock.advance(0);
    await clock.advance(0);
    assert.equal(looks(), 2);
    await made.stop();
  });

  it("takes a snapshot back that may have been lent although the store did not say so", async () => {
    let failures = 1;
    const { made, told } = keeper({
      push: async () => digest,
      put: () => {
        if (failures-- > 0)
          throw new SandboxError({ reason: "fleet_unavailable", code: "unavailable" }, "no answer");
      },
    });
    const snapshot = { id: "s", owner: "me", template: "t", backend: "memory", limits: {}, takenAtMs: 0 };
    const lent = made.lend(snapshot as unknown as SnapshotRecord, new AbortController().signal);
    await assert.rejects(lent, { reason: "fleet_unavailable" });
    assert.deepEqual([...told], [["s", undefined]]);
  });
});
