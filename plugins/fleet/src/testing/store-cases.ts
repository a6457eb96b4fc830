import assert from "node:assert/strict";
import { after, before, it } from "node:test";
import type { FleetStore, Update } from "../store/fleet-store.js";

type Changes = Extract<Update, { readonly kind: "changes" }>["changes"];

/** Takes changes from a watch until there are so many. */
export async function take(updates: AsyncIterable<Update>, count: number): Promise<Changes> {
  const seen: Changes[number][] = [];
  for await (const update of updates) {
    if (update.kind !== "changes") throw new Error("the watch was compacted");
    seen.push(...update.changes);
    if (seen.length >= count) break;
  }
  return seen;
}

/** `key=value` of each change. */
export const namesOf = (changes: Changes): readonly string[] =>
  changes.map(({ key, entry }) => `${key}=${entry?.value ?? "(deleted)"}`);

/** What every store of a fleet does. */
export function storeCases(open: () => Promise<FleetStore>): void {
  let store: FleetStore;
  before(async () => {
    store = await open();
  });
  after(async () => store.close());

  it("a key has the revisions of the commits that made it and put it last", async () => {
    assert.equal(await store.get("a/missing"), undefined);
    const made = await store.commit([{ key: "a/one", createRevision: 0 }], [{ put: "a/one", value: "1" }]);
    const put = await store.commit([], [{ put: "a/one", value: "ä\n" }]);
    assert.ok(made !== undefined && put !== undefined && put > made);
    const expected = { key: "a/one", value: "ä\n", createRevision: made, modRevision: put };
    assert.deepEqual(await store.get("a/one"), expected);
  });

  it("a commit makes all of its changes, or none where one check is false", async () => {
    const first = await store.commit(
      [],
      [
        { put: "b/one", value: "1" },
        { put: "b/two", value: "2" },
      ],
    );
    assert.ok(first !== undefined);
    const refused = await store.commit(
      [
        { key: "b/one", modRevision: first },
        { key: "b/two", createRevision: first - 1 },
      ],
      [{ put: "b/one", value: "changed" }, { delete: "b/two" }],
    );
    assert.equal(refused, undefined);
    const again = await store.commit(
      [
        { key: "b/one", modRevision: first },
        { key: "b/two", createRevision: first },
        { key: "b/three", modRevision: 0 },
      ],
      [{ put: "b/one", value: "changed" }, { delete: "b/two" }],
    );
    assert.ok(again !== undefined && again > first);
    const { entries, revision } = await store.list("b/");
    assert.deepEqual(
      entries.map(({ key, value }) => [key, value]),
      [["b/one", "changed"]],
    );
    assert.equal(revision, again);
    const visited: unknown[] = [];
    assert.equal(await store.each("b/", (entry) => visited.push(entry)), revision);
    assert.deepEqual(visited, entries);
  });

  it("what was put after a revision can be visited alone", async () => {
    const names = async (after?: number): Promise<readonly string[]> => {
      const visited: string[] = [];
      await store.each("f/", ({ key, value }) => visited.push(`${key}=${value}`), after);
      return visited;
    };
    const put = async (name: string, value: string): Promise<number> =>
      (await store.commit([], [{ put: `f/${name}`, value }])) ?? 0;
    await put("one", "1");
    const second = await put("two", "2");
    await put("three", "3");
    await put("one", "changed");
    await store.commit([], [{ delete: "f/three" }, { put: "f0", value: "x" }]);
    assert.deepEqual(await names(), ["f/one=changed", "f/two=2"]);
    assert.deepEqual(await names(second), ["f/one=changed"]);
  });

  it("of commits at the same time that make the same key, one succeeds", async () => {
    const attempts = Array.from({ length: 20 }, (_, index) =>
      store.commit([{ key: "c/only", createRevision: 0 }], [{ put: "c/only", value: String(index) }]),
    );
    const made = (await Promise.all(attempts)).filter((revision) => revision !== undefined);
    assert.equal(made.length, 1);
    assert.equal((await store.get("c/only"))?.createRevision, made[0]);
  });

  it("a commit that counted keys fails when one was put since, and not when some were deleted", async () => {
    const empty = (await store.list("n/")).revision;
    const made = await store.commit(
      [{ prefix: "n/", notPutAfter: empty }],
      [
        { put: "n/one", value: "1" },
        { put: "n/two", value: "2" },
        { put: "n0", value: "x" },
      ],
    );
    assert.ok(made !== undefined);
    const forestalled = await store.commit([{ prefix: "n/", notPutAfter: empty }], [{ delete: "n/one" }]);
    assert.equal(forestalled, undefined);
    await store.commit([], [{ delete: "n/two" }, { put: "n0", value: "y" }, { put: "n", value: "y" }]);
    assert.ok(await store.commit([{ prefix: "n/", notPutAfter: made }], [{ put: "n/one", value: "again" }]));
    assert.equal(
      await store.commit([{ prefix: "n/", notPutAfter: made }], [{ put: "n/two", value: "2" }]),
      undefined,
    );
    assert.deepEqual(namesOf((await store.list("n/")).entries.map((entry) => ({ key: entry.key, entry }))), [
      "n/one=again",
    ]);
  });

  it("a listing has every key with the prefix, in order, and no others", async () => {
    const keys = Array.from({ length: 2345 }, (_, index) => `d/${String(index).padStart(5, "0")}`);
    for (let at = 0; at < keys.length; at += 100)
      await store.commit(
        [],
        keys.slice(at, at + 100).map((put) => ({ put, value: "x" })),
      );
    await store.commit(
      [],
      [
        { put: "d0", value: "x" },
        { put: "d", value: "x" },
      ],
    );
    const { entries } = await store.list("d/");
    assert.deepEqual(
      entries.map(({ key }) => key),
      keys,
    );
    assert.deepEqual((await store.list("e/")).entries, []);
  });

  it("a watch tells what was committed after a revision, in order", async () => {
    const begun = await store.commit([], [{ put: "w/before", value: "0" }]);
    assert.ok(begun !== undefined);
    await store.commit(
      [],
      [
        { put: "w/one", value: "1" },
        { put: "elsewhere", value: "1" },
      ],
    );
    await store.commit([], [{ delete: "w/one" }]);
    await store.commit([], [{ delete: "w/missing" }]);
    const stop = new AbortController();
    const taken = take(store.watch("w/", begun, stop.signal), 4);
    await store.commit([], [{ put: "w/one", value: "2" }, { delete: "w/before" }]);
    assert.deepEqual(namesOf(await taken), ["w/one=1", "w/one=(deleted)", "w/one=2", "w/before=(deleted)"]);
    stop.abort();
  });

  it("a watch ends when its signal aborts, also in silence", async () => {
    const stop = new AbortController();
    const { revision } = await store.list("v/");
    const watching = take(store.watch("v/", revision, stop.signal), 1);
    setTimeout(() => stop.abort(), 20);
    assert.deepEqual(await watching, []);
  });

  it("keys of a lease are deleted when it is revoked or was not renewed, and watches tell it", async () => {
    const { revision } = await store.list("l/");
    const stop = new AbortController();
    const taken = take(store.watch("l/", revision, stop.signal), 4);
    const kept = await store.grant(2000);
    const forgotten = await store.grant(2000);
    await store.commit([], [{ put: "l/kept", value: "k", lease: kept }]);
    await store.commit([], [{ put: "l/forgotten", value: "f", lease: forgotten }]);
    const renewing = setInterval(() => void store.renew(kept), 300);
    try {
      // Until the other lease has ended.
      const seen = take(store.watch("l/", revision, stop.signal), 3);
      assert.equal(namesOf(await seen).at(-1), "l/forgotten=(deleted)");
    } finally {
      clearInterval(renewing);
    }
    assert.equal(await store.renew(kept), true);
    assert.equal(await store.renew(forgotten), false);
    assert.equal(await store.commit([], [{ put: "l/late", value: "x", lease: forgotten }]), undefined);
    await store.revoke(kept);
    await store.revoke(forgotten);
    assert.equal(namesOf(await taken).at(-1), "l/kept=(deleted)");
    assert.equal(await store.get("l/kept"), undefined);
    stop.abort();
  });
}
