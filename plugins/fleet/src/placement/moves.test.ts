import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { SandboxError, type SnapshotRecord } from "@coppice/core";
import { Moves, type MovesOptions } from "./moves.js";
import { REASONS } from "../reasons.js";

const ID = "old";

/** A server with one sandbox, and another one that answers as told. */
function world({
  state = "running",
  mounts = [],
  during = (): void => {},
  answer = { id: "new", server: "b" },
  isCeded = true,
}: {
  readonly state?: string;
  readonly mounts?: readonly object[];
  readonly during?: (changeTo: (state: string) => void) => void;
  readonly answer?: object;
  readonly isCeded?: boolean;
} = {}) {
  const done: string[] = [];
  let record = { id: ID, owner: "me", state, mounts, endsAtMs: 50_000 };
  const changeTo = (next: string): void => void (record = { ...record, state: next });
  let isThere = true;
  const note = async (what: string, next?: string): Promise<void> => {
    done.push(what);
    if (next !== undefined) changeTo(next);
  };
  const options = {
    clock: { now: () => 0 },
    log: { info: () => {}, warn: () => {} },
    sandboxes: {
      get: () => ({ record }),
      find: () => (isThere ? { record } : undefined),
      pause: () => note("pause", "paused"),
      resume: (_id: string, leftMs: number) => note(`resume ${leftMs}`, "running"),
      kill: async (id: string, reason: string) => {
        isThere = false;
        await note(`kill ${id} ${reason}`);
      },
    },
    snapshots: {
      of: () => ({
        lend: async (_id: string, use: (snapshot: SnapshotRecord) => Promise<unknown>) =>
          use({ id: "snapshot" } as SnapshotRecord),
      }),
    },
    templates: {
      lend: async () => {
        done.push("lend");
        return { [Symbol.asyncDispose]: () => note("take back") };
      },
    },
    placement: { elsewhere: async () => "b" },
    moved: {
      cede: async (id: string, successor: string) => {
        done.push(`cede ${id} for ${successor}`);
        if (!isCeded) throw new SandboxError(REASONS.fleet_unavailable, "it was given up");
      },
    },
    ask: async (server: string, path: string) => {
      done.push(`${path} ${server}`);
      if (path === "/arrivals") during(changeTo);
      return answer;
    },
  };
  return { moves: new Moves(options as unknown as MovesOptions), done };
}

const move = async (options: Parameters<typeof world>[0]) => {
  const { moves, done } = world(options);
  return { moved: await moves.move(ID, new AbortController().signal), done };
};

describe("the move of a sandbox", () => {
  it("stops it first, and ends it once the other server has its own", async () => {
    const { moved, done } = await move({});
    assert.deepEqual(moved, { id: "new", server: "b" });
    assert.deepEqual(done, [
      "pause",
      "lend",
      "/arrivals b",
      "take back",
      "cede old for new",
      "kill old moved",
    ]);
  });

  it("is undone when a client resumed it meanwhile: what it wrote since would be lost", async () => {
    for (const states of [["running"], ["running", "paused"]]) {
      const { moved, done } = await move({ during: (changeTo) => states.forEach(changeTo) });
      assert.match(JSON.stringify(moved), /refusal.*was resumed/);
      assert.deepEqual(done, ["pause", "lend", "/arrivals b", "take back", "/ends b"]);
    }
  });

  it("is one move for all that ask for it at a time", async () => {
    const { moves, done } = world();
    const { signal } = new AbortController();
    const moved = await Promise.all([moves.move(ID, signal), moves.move(ID, signal)]);
    assert.deepEqual(moved, [
      { id: "new", server: "b" },
      { id: "new", server: "b" },
    ]);
    assert.deepEqual(done, [
      "pause",
      "lend",
      "/arrivals b",
      "take back",
      "cede old for new",
      "kill old moved",
    ]);
  });

  it("leaves it running, with the rest of its life, when the other server refuses or is lost", async () => {
    const fail = (): never => {
      throw new SandboxError(REASONS.fleet_unavailable, "it is gone");
    };
    for (const options of [{ answer: { refusal: "no room" } }, { during: fail }, { isCeded: false }]) {
      const { moved, done } = await move(options);
      assert.match(JSON.stringify(moved), /refusal.*(no room|it is gone|it was given up)/);
      assert.equal(done.at(-1), "resume 50000");
    }
  });

  it("is refused for one with volumes, which are of its server, and touches nothing", async () => {
    const { moved, done } = await move({ mounts: [{ volume: "one" }] });
    assert.match(JSON.stringify(moved), /refusal.*has volumes/);
    assert.deepEqual(done, []);
  });

  it("leaves a paused one paused", async () => {
    const { done } = await move({ state: "paused", answer: { refusal: "no room" } });
    assert.deepEqual(done, ["lend", "/arrivals b", "take back"]);
  });

  it("leaves nothing at the other server when it could not be paused there, or its time not be set", async () => {
    for (const failing of ["pause", "setTimeout"]) {
      const killed: string[] = [];
      const sandboxes = {
        create: async () => ({ record: { id: "new" } }),
        pause: async () => {},
        setTimeout: async () => {},
        kill: async (id: string) => void killed.push(id),
        [failing]: async () => assert.fail("it cannot"),
      };
      const arriving = new Moves({ sandboxes } as unknown as MovesOptions);
      const request = { template: "base", timeoutMs: undefined, secure: false };
      await assert.rejects(
        arriving.arrive({ request, leftMs: 5, isPaused: true }, new AbortController().signal),
        /it cannot/,
      );
      assert.deepEqual(killed, ["new"], failing);
    }
  });
});
