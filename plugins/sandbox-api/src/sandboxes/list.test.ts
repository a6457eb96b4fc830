import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { LiveSandbox, SandboxRecord } from "@coppice/core";
import { listSandboxes, parseListQuery } from "./list.js";

const START = Date.parse("2026-01-02T03:04:05.678Z");

function sandbox(record: Partial<SandboxRecord> & Pick<SandboxRecord, "id">): LiveSandbox {
  const whole: SandboxRecord = {
    backend: "memory",
    template: "base",
    snapshot: undefined,
    state: "running",
    startedAtMs: START,
    endsAtMs: undefined,
    timeoutMs: undefined,
    onTimeout: "kill",
    autoResume: false,
    metadata: {},
    environment: {},
    accessToken: undefined,
    trafficAccessToken: undefined,
    maskRequestHost: undefined,
    owner: "default",
    limits: {},
    allowInternetAccess: true,
    egress: undefined,
    mounts: [],
    ...record,
  };
  return {
    record: whole,
    ended: new AbortController().signal,
    isReachable: true,
    isFrozen: false,
    requests: 0,
    lastUsedAtMs: 0,
    get runtime(): never {
      throw new Error("a list does not touch the backend");
    },
    adopted: async () => [],
    stats: () => Promise.reject(new Error("a list does not touch the backend")),
  };
}

function ids(all: readonly LiveSandbox[], query: string): string {
  return listSandboxes(all, parseListQuery(new URLSearchParams(query)))
    .sandboxes.map(({ record }) => record.id)
    .join(" ");
}

describe("a list of sandboxes", () => {
  it("is newest first, or oldest first when asked, with ties in a fixed order", () => {
    const all = [sandbox({ id: "b" }), sandbox({ id: "late", startedAtMs: START + 1 }), sandbox({ id: "a" })];
    assert.equal(ids(all, ""), "late b a");
    assert.equal(ids(all, "order=asc"), "a b late");
  });

  it("goes page by page without repeating or losing one, whatever starts and ends in between", () => {
    for (const order of ["asc", "desc"]) {
      let all = Array.from({ length: 7 }, (_, index) =>
        sandbox({ id: `s${index}`, startedAtMs: START + Math.floor(index / 2) }),
      );
      const seen: string[] = [];
      let query = `limit=2&order=${order}`;
      for (let page = 0; page < 5; page += 1) {
        const { sandboxes, nextToken } = listSandboxes(all, parseListQuery(new URLSearchParams(query)));
        seen.push(...sandboxes.map(({ record }) => record.id));
        if (nextToken === undefined) break;
        // The sandbox that the cursor points at ends.
        all = all.filter(({ record }) => record.id !== seen.at(-1));
        query = `limit=2&order=${order}&nextToken=${nextToken}`;
      }
      assert.equal(new Set(seen).size, 7, `${order}: ${seen.join(" ")}`);
      assert.equal(seen.length, 7, `${order}: ${seen.join(" ")}`);
    }
  });

  it("has a next page only where something is on it", () => {
    const all = ["a", "b", "c", "d"].map((id) => sandbox({ id }));
    const hasNext = (limit: number) =>
      listSandboxes(all, parseListQuery(new URLSearchParams(`limit=${limit}`))).nextToken !== undefined;
    assert.deepEqual([3, 4, 5].map(hasNext), [true, false, false]);
  });

  it("counts the running ones of all pages, unless only paused ones were asked for", () => {
    const all = [sandbox({ id: "a" }), sandbox({ id: "b" }), sandbox({ id: "c", state: "paused" })];
    const total = (query: string) =>
      listSandboxes(all, parseListQuery(new URLSearchParams(query))).totalRunning;
    assert.equal(total("limit=1"), 2);
    assert.equal(total("state=running"), 2);
    assert.equal(total("state=paused"), undefined);
  });

  it("filters by state, template, start and metadata", () => {
    const all = [
      sandbox({ id: "plain" }),
      sandbox({ id: "paused", state: "paused" }),
      sandbox({ id: "creating", state: "creating" }),
      sandbox({ id: "killing", state: "killing" }),
      sandbox({ id: "code", template: "code-interpreter-v1" }),
      sandbox({ id: "marked", metadata: { "k &": "v=", "user": "abc" } }),
      sandbox({ id: "later", startedAtMs: START + 1 }),
    ];
    const expected: [string, string][] = [
      ["", "later plain paused marked code"],
      ["state=paused", "paused"],
      ["state=running,paused", "later plain paused marked code"],
      ["state=running&state=paused", "later plain paused marked code"],
      ["template=Code-Interpreter-V1", "code"],
      ["template=unknown", ""],
      // Three layers of encoding, as the JavaScript SDK sends it.
      ["metadata=k%252520%252526%3Dv%25253D", "marked"],
      ["metadata=user%3Dabc", "marked"],
      ["metadata=user=abc", "marked"],
      ["metadata=user%3Dabc%26other%3Dx", ""],
      ["metadata=constructor%3Dx", ""],
      ["metadata=", "later plain paused marked code"],
      ["startedAfter=2026-01-02T03:04:05.679Z", "later"],
      ["startedAfter=2026-01-02T03:04:05.678Z", "later plain paused marked code"],
      ["startedAfter=2026-01-02T03:04:05.678001Z", "later"],
      ["startedAfter=2026-01-02T04:04:05.679%2B01:00", "later"],
      ["startedAfter=2026-01-02T04:04:05.679+01:00", "later"],
    ];
    for (const [query, found] of expected) assert.equal(ids(all, query), found, query || "no filter");
  });

  it("refuses an invalid query", () => {
    const refused: [string, RegExp][] = [
      ["state=gone", /^validation error: state/],
      ["order=up", /^validation error: order/],
      ["limit=0", /^validation error: limit/],
      ["limit=101", /^validation error: limit/],
      ["limit=1e1", /^validation error: limit/],
      ["limit=", /^validation error: limit/],
      ["startedAfter=yesterday", /^validation error: startedAfter/],
      ["startedAfter=2026-99-02T03:04:05Z", /^validation error: startedAfter/],
      ["template=base:v1", /^Invalid template: tags are not supported/],
      ["metadata=%2525zz%3Dx", /^validation error: metadata/],
      ["metadata=alone", /^validation error: metadata/],
      ["nextToken=garbage", /^Invalid next token$/],
      [
        `nextToken=${Buffer.from("2026-01-02T03:04:05Z__a__asc").toString("base64url")}`,
        /^Invalid next token$/,
      ],
      [
        `order=asc&nextToken=${Buffer.from("2026-01-02T03:04:05Z__a").toString("base64url")}`,
        /^Invalid next token$/,
      ],
      [
        `nextToken=${Buffer.from("2026-01-02T03:04:05Z__../x").toString("base64url")}`,
        /^Invalid next token$/,
      ],
    ];
    for (const [query, message] of refused) {
      assert.throws(
        () => parseListQuery(new URLSearchParams(query)),
        { code: "invalid_argument", message },
        query,
      );
    }
  });
});
