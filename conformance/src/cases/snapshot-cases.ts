import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import type { Sandbox, SnapshotId } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext } from "../kit/conformance-context.js";
import { FACTS } from "../kit/facts.js";
import { startTicking } from "../kit/ticking.js";

/** Promises of sandboxes with the facet `snapshots`, and of their backend. */
export const snapshotCases: readonly ConformanceCase[] = [
  {
    name: "a sandbox begins with the files of a snapshot, with their owners, modes and links",
    group: "facets",
    needs: ["snapshots"],
    async run(context) {
      const { sandbox } = context;
      await context.succeed(
        "mkdir -p deep/er && echo before > deep/er/file && chmod 640 deep/er/file && ln -s er/file deep/link && " +
          "ln deep/er/file deep/twin && : > deep/empty && printf '\\0\\377' > deep/bytes",
      );
      await withSnapshot(context, sandbox, async (id) => {
        await context.succeed("echo after > deep/er/file; rm deep/link; echo new > deep/new");
        const fork = await context.provision({ snapshot: id });
        const seen = await context.succeed(
          `${FACTS}; cat deep/link; facts deep/er/file | cut -d ' ' -f 1,4,5; ls deep; od -An -tx1 deep/bytes | tr -d ' '`,
          { in: fork },
        );
        assert.equal(seen, "before\n640 user 2\nbytes\nempty\ner\nlink\ntwin\n00ff\n");
        await context.succeed("echo fork > deep/er/file", { in: fork });
        assert.equal(await context.succeed("cat deep/er/file"), "after\n", "a fork changes its source");
      });
    },
  },
  {
    name: "files of a template that were removed before a snapshot are not in it",
    group: "facets",
    needs: ["snapshots", "isolation"],
    async run(context) {
      await context.succeed("rm -rf /etc/skel /etc/passwd- && mkdir /etc/skel && echo own > /etc/skel/file", {
        user: "root",
      });
      await withSnapshot(context, context.sandbox, async (id) => {
        const fork = await context.provision({ snapshot: id });
        assert.equal(await context.succeed("ls -A /etc/skel", { in: fork }), "file\n");
      });
    },
  },
  {
    name: "the sandbox goes on when a snapshot was taken of it, or stays paused",
    group: "facets",
    needs: ["snapshots"],
    async run(context) {
      const { sandbox } = context;
      const ticking = await startTicking(context, sandbox);
      await withSnapshot(context, sandbox, async () => {
        await ticking.until(ticking.ticks + 2);
        assert.ok(ticking.isGapless, "it did not go on where it was");
      });
      if (sandbox.pausing !== undefined) {
        await context.write(context.home("file"), "paused");
        await sandbox.pausing.pause();
        await withSnapshot(context, sandbox, async (id) => {
          const fork = await context.provision({ snapshot: id });
          assert.equal(await context.succeed("cat file", { in: fork }), "paused");
          const { ticks } = ticking;
          await context.succeed("sleep 0.3", { in: fork });
          assert.ok(ticking.ticks <= ticks + 1, "a snapshot resumed it");
        });
        await sandbox.pausing.resume();
      }
      await ticking.kill();
    },
  },
  {
    name: "a snapshot outlives its sandbox, and a sandbox the snapshot that it was made from",
    group: "facets",
    needs: ["snapshots"],
    async run(context) {
      const source = await context.provision();
      await context.succeed("echo first > file", { in: source });
      const child = await withSnapshot(context, source, async (id) => {
        await source.destroy();
        const made = await context.provision({ snapshot: id });
        await context.succeed("echo second > other", { in: made });
        return made;
      });
      assert.equal(await context.succeed("cat file other", { in: child }), "first\nsecond\n");
      await withSnapshot(context, child, async (id) => {
        await child.destroy();
        const grandchild = await context.provision({ snapshot: id });
        assert.equal(await context.succeed("cat file other", { in: grandchild }), "first\nsecond\n");
      });
    },
  },
  {
    name: "snapshots are listed until they are removed, and removing one twice is no error",
    group: "facets",
    needs: ["snapshots"],
    async run(context) {
      const { backend } = context;
      const { snapshots } = backend;
      assert.ok(snapshots, "its sandboxes can take snapshots, and it cannot list them");
      const id = await withSnapshot(context, context.sandbox, async (taken) => {
        assert.ok((await snapshots.list()).includes(taken));
        return taken;
      });
      assert.ok(!(await snapshots.list()).includes(id));
      await snapshots.remove(id);
      await context.refuses(
        () => context.provision({ snapshot: id }),
        ["not_found", "invalid_argument", "failed_precondition"],
      );
    },
  },
  {
    name: "a sandbox can be destroyed while a snapshot is taken of it",
    group: "facets",
    needs: ["snapshots"],
    async run(context) {
      const sandbox = await context.provision();
      await context.succeed("for i in $(seq 200); do echo $i > f$i; done", { in: sandbox });
      const id = newId();
      const taking = sandbox.snapshots?.take(id);
      await context.within(5_000, "it is destroyed", Promise.allSettled([taking, sandbox.destroy()]));
      await sandbox.destroy();
      await context.backend.snapshots?.remove(id);
      assert.ok(!(await context.backend.snapshots?.list())?.includes(id));
    },
  },
];

/** Takes a snapshot for the duration of `use`. */
async function withSnapshot<T>(
  { backend }: ConformanceContext,
  { snapshots }: Sandbox,
  use: (id: SnapshotId) => Promise<T>,
): Promise<T> {
  assert.ok(snapshots);
  const id = newId();
  await snapshots.take(id);
  try {
    return await use(id);
  } finally {
    await backend.snapshots?.remove(id);
  }
}

function newId(): SnapshotId {
  return `conform${randomBytes(8).toString("hex")}`;
}
