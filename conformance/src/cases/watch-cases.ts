import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { WatchEvent } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import { chunked, type ConformanceContext } from "../kit/conformance-context.js";

const MEBIBYTE = 2 ** 20;
/** Silence after which all events are taken to have arrived. */
const QUIET_MS = 100;
const MANY_WRITES = 20_000;

/** Events of a directory watch that clients rely on: contract D.5. */
export const watchCases: readonly ConformanceCase[] = [
  {
    name: "a new small file is reported as create, chmod and write, at once",
    group: "files",
    needs: ["watching"],
    async run(context) {
      for (const recursive of [false, true]) {
        const path = context.home(`watched-${recursive}`);
        await context.sandbox.files.makeDir(path);
        const watch = await open(context, path, recursive);
        await context.write(`${path}/new.txt`, "content");
        await watch.tells("create new.txt", "chmod new.txt", "write new.txt");
        await context.write(`${path}/new.txt`, "other content");
        const again = await watch.rest();
        assert.ok(again.includes("write new.txt"), again.join(", "));
        assert.ok(
          again.every((event) => /^(chmod|write) new\.txt$/.test(event)),
          again.join(", "),
        );
        await watch.stop();
      }
    },
  },
  {
    name: "a large file that is written appears under its own name and no other",
    group: "files",
    needs: ["watching"],
    async run(context) {
      const watch = await open(context, context.user.home, true);
      await context.write(context.home("large"), chunked(Buffer.alloc(3 * MEBIBYTE)));
      const events = await watch.rest();
      assert.equal(events[0], "create large");
      assert.ok(
        events.every((event) => event.endsWith(" large")),
        events.join(", "),
      );
      await watch.stop();
    },
  },
  {
    name: "changes by processes are reported by the name of the operation",
    group: "files",
    needs: ["watching"],
    async run(context) {
      await context.succeed("echo x > old");
      const watch = await open(context, context.user.home, false);
      await context.succeed("echo content > new");
      await watch.tells("create new", "write new");
      await context.succeed("echo more >> old");
      await watch.tells("write old");
      await context.succeed("chmod 600 old");
      await watch.tells("chmod old");
      await context.succeed("mv old moved");
      await watch.tells("rename old", "create moved");
      await context.succeed("ln -s moved link; mkfifo pipe; mkdir dir");
      await watch.tells("create link", "create pipe", "create dir");
      await context.succeed("rm moved link; rmdir dir");
      await watch.tells("remove moved", "remove link", "remove dir");
      await context.succeed("echo 'a b' > ' ünï ✓'");
      await watch.tells("create  ünï ✓", "write  ünï ✓");
      await watch.stop();
    },
  },
  {
    name: "moves and removals by the server are reported, too",
    group: "files",
    needs: ["watching"],
    async run(context) {
      const { files } = context.sandbox;
      await context.succeed(
        "mkdir -p seen/sub elsewhere; echo x > seen/a; echo x > elsewhere/b; echo x > seen/sub/c",
      );
      const watch = await open(context, context.home("seen"), true);
      await files.move(context.home("seen/a"), context.home("seen/z"));
      await watch.tells("rename a", "create z");
      await files.move(context.home("seen/z"), context.home("elsewhere/z"));
      await watch.tells("rename z");
      await files.move(context.home("elsewhere/b"), context.home("seen/b"));
      await watch.tells("create b");
      await files.makeDir(context.home("seen/made"));
      const made = await watch.rest();
      assert.equal(made[0], "create made");
      await files.remove(context.home("seen/sub"));
      await watch.tells("remove sub/c", "remove sub");
      await watch.stop();
    },
  },
  {
    name: "a watch sees its directory, and the directories below only when it is recursive",
    group: "files",
    needs: ["watching"],
    async run(context) {
      await context.succeed("mkdir -p top/below/deep");
      const flat = await open(context, context.home("top"), false);
      const recursive = await open(context, context.home("top"), true);
      await context.succeed("echo x > top/below/deep/file; echo x > top/file; echo x > outside");
      await flat.tells("create file", "write file");
      await recursive.tells("create below/deep/file", "write below/deep/file", "create file", "write file");
      await flat.stop();
      await recursive.stop();
    },
  },
  {
    name: "an entry that is made right after its directory is reported once",
    group: "files",
    needs: ["watching"],
    async run(context) {
      const path = context.home("race");
      await context.sandbox.files.makeDir(path);
      const watch = await open(context, path, true);
      await context.succeed(
        "i=0; while [ $i -lt 50 ]; do mkdir -p d$i/e && echo x > d$i/e/f; i=$((i + 1)); done",
        {
          cwd: path,
        },
      );
      const created = (await watch.rest()).filter((event) => event.startsWith("create "));
      const expected = Array.from({ length: 50 }, (_, index) => [
        `d${index}`,
        `d${index}/e`,
        `d${index}/e/f`,
      ]);
      assert.deepEqual(
        created.toSorted(),
        expected
          .flat()
          .map((name) => `create ${name}`)
          .toSorted(),
      );
      for (const [index, name] of created.entries()) {
        const parent = name.slice(0, Math.max(0, name.lastIndexOf("/")));
        assert.ok(parent === "" || created.indexOf(parent) < index, `${name} is told before its directory`);
      }
      await context.write(`${path}/by/the/server`, "x");
      const written = (await watch.rest()).filter((event) => event.startsWith("create "));
      assert.deepEqual(written, ["create by", "create by/the", "create by/the/server"]);
      await watch.stop();
    },
  },
  {
    name: "a renamed directory is reported by its new name",
    group: "files",
    needs: ["watching"],
    async run(context) {
      await context.succeed("mkdir -p top/tree/deep");
      const watch = await open(context, context.home("top"), true);
      await context.succeed("mv top/tree top/wood");
      await watch.tells("rename tree", "create wood");
      await context.succeed("echo x > top/wood/deep/leaf");
      await watch.tells("create wood/deep/leaf", "write wood/deep/leaf");
      await context.succeed("mv top/wood away; echo x > away/deep/more");
      await watch.tells("rename wood");
      await watch.stop();
    },
  },
  {
    name: "a watch follows its root and no other link",
    group: "files",
    needs: ["watching"],
    async run(context) {
      await context.succeed("mkdir real outside; ln -s real root; ln -s ../outside real/link");
      const watch = await open(context, context.home("root"), true);
      await context.succeed("ln -s ../outside real/later; echo x > outside/file; echo x > real/file");
      await watch.tells("create later", "create file", "write file");
      await watch.stop();
    },
  },
  {
    name: "a watch whose reader falls behind reports all events, or that some are lost",
    group: "files",
    needs: ["watching"],
    async run(context) {
      const path = context.home("busy");
      await context.sandbox.files.makeDir(path);
      const ending = new AbortController();
      const events = await requireWatch(context, path, { recursive: false, signal: ending.signal });
      const long = "x".repeat(200);
      // Alternating: of two equal changes in a row the kernel reports one.
      const script = `i=0; while [ $i -lt ${MANY_WRITES / 2} ]; do echo >> a$1; echo >> b$1; i=$((i + 1)); done`;
      await context.succeed(script, { args: [long], cwd: path });
      let told = 0;
      try {
        for await (const { type } of events) {
          if (type === "write" && ++told === MANY_WRITES) ending.abort();
        }
        assert.equal(told, MANY_WRITES, "the watch ended without a word");
      } catch (error) {
        assert.ok(error instanceof SandboxError, `expected a SandboxError, got ${String(error)}`);
      }
      // A failed watch does not affect others.
      const watch = await open(context, context.user.home, false);
      await context.succeed("echo x > file");
      await watch.tells("create file", "write file");
      await watch.stop();
    },
  },
  {
    name: "a missing path, or one that is no directory, cannot be watched",
    group: "files",
    needs: ["watching"],
    async run(context) {
      await context.write(context.home("file"), "");
      const { signal } = new AbortController();
      for (const [name, code] of [
        ["none", "not_found"],
        ["file", "invalid_argument"],
      ] as const) {
        await context.refuses(requireWatch(context, context.home(name), { recursive: false, signal }), code);
      }
    },
  },
  {
    name: "a watch ends when its reader leaves or its signal fires, a hundred times over",
    group: "files",
    needs: ["watching"],
    async run(context) {
      for (let round = 0; round < 50; round++) {
        const watch = await open(context, context.user.home, true);
        await watch.stop();
        const events = await requireWatch(context, context.user.home, {
          recursive: false,
          signal: new AbortController().signal,
        });
        await context.succeed("echo x > file");
        for await (const _ of events) break;
      }
    },
  },
  {
    name: "a watch ends with its sandbox",
    group: "files",
    needs: ["watching"],
    async run(context) {
      const watch = await open(context, context.user.home, true);
      await context.sandbox.destroy();
      await context.within(2_000, "the watch ends", watch.ended);
    },
  },
];

interface OpenWatch {
  /** Settles when it has ended, successfully or not. */
  readonly ended: Promise<unknown>;
  /** Waits for these events and then for silence. @throws AssertionError on other events. */
  tells(...expected: readonly string[]): Promise<void>;
  /** Waits for at least one event and then for silence. */
  rest(): Promise<string[]>;
  stop(): Promise<void>;
}

type Options = Parameters<NonNullable<ConformanceContext["sandbox"]["files"]["watch"]>>[1];

async function requireWatch(
  { sandbox }: ConformanceContext,
  path: string,
  options: Options,
): Promise<AsyncIterable<WatchEvent>> {
  const watching = sandbox.files.watch?.(path, options);
  assert.ok(watching, "the files cannot be watched");
  return watching;
}

async function open(context: ConformanceContext, path: string, recursive: boolean): Promise<OpenWatch> {
  const ending = new AbortController();
  const events = await requireWatch(context, path, { recursive, signal: ending.signal });
  const seen: string[] = [];
  let lastMs = performance.now();
  const failures: Error[] = [];
  const ended = (async () => {
    for await (const { type, name } of events) {
      seen.push(`${type} ${name}`);
      lastMs = performance.now();
    }
  })().catch((error: unknown) => failures.push(new Error("the watch failed", { cause: error })));
  const throwFailure = (): void => {
    if (failures[0] !== undefined) throw failures[0];
  };
  const take = async (atLeast: number): Promise<string[]> => {
    const startMs = performance.now();
    while (seen.length < atLeast && performance.now() - startMs < 2_000 && failures.length === 0) {
      await sleep(5);
    }
    lastMs = Math.max(lastMs, startMs);
    while (performance.now() - lastMs < QUIET_MS) await sleep(QUIET_MS / 4);
    throwFailure();
    return seen.splice(0);
  };
  return {
    ended,
    async tells(...expected) {
      assert.deepEqual(await take(expected.length), expected);
    },
    rest: () => take(1),
    async stop() {
      ending.abort();
      await context.within(2_000, "the watch ends", ended);
      throwFailure();
    },
  };
}
