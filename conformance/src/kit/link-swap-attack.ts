import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import type { FileInfo } from "@coppice/core/backend";
import type { Canary, ConformanceContext } from "./conformance-context.js";
import { OutputReader } from "./output-reader.js";

/**
 * Swaps directories and files with links to the outside as fast as it can, and moves a directory up while paths through
 * it go up. Recreates removed entries.
 */
const SWAP_PROGRAM = `
import ctypes, os, sys
canary, bait = sys.argv[1:3]
up = "../" * 40
pairs = [
    ("door", "link", canary),
    ("relative", "relative-link", up + canary),
    ("name", "name-link", canary + "/secret.txt"),
    ("window", "window-link", bait),
]
libc = ctypes.CDLL(None, use_errno=True)

def exchange(one, other):
    try:
        done = libc.renameat2(-100, one.encode(), -100, other.encode(), 2) == 0
    except AttributeError:
        done = False
    if not done:
        os.rename(one, "between")
        try:
            os.rename(other, one)
        except OSError:
            os.rename("between", one)
            raise
        os.rename("between", other)

def mend(one, other, target):
    for path in (one, other, "between"):
        if os.path.islink(path) and os.readlink(path) != target:
            os.unlink(path)
    names = [path for path in (one, other) if not os.path.lexists(path)]
    if len(names) == 2 or (names and not os.path.islink(one) and not os.path.islink(other)):
        os.symlink(target, names.pop())
    for path in names:
        if one == "name":
            open(path, "w").write("inside")
        else:
            os.mkdir(path)
            open(path + "/secret.txt", "w").write("inside")

def climb():
    os.makedirs("deep/one/two", exist_ok=True)
    os.rename("deep/one/two", "two")
    os.rename("two", "deep/one/two")

print("ready", flush=True)
while True:
    for one, other, target in pairs:
        try:
            exchange(one, other)
        except OSError:
            try:
                mend(one, other, target)
            except OSError:
                pass
    try:
        climb()
    except OSError:
        pass
`;

const SWAP_SCRIPT = `
command -v python3 > /dev/null && exec python3 -c "$1" "$2" "$3"
mkdir door; ln -s "$2" link; echo ready
while :; do
  mv door real; mv link door; mv door link; mv real door
  [ -d door ] || mkdir door
done 2> /dev/null`;

/** The paths under attack, in the home: outside, each would be a file of the canary's name. */
const DOORS = ["door", "relative"] as const;

/**
 * Runs every file operation while a program inside tries to redirect it outside.
 * @throws AssertionError when one operation saw or changed anything of the host.
 */
export async function attackByLinkSwaps(context: ConformanceContext, durationMs: number): Promise<void> {
  const { files } = context.sandbox;
  const canary = await context.canary();
  await using bait = await makeBait();
  const attacker = await context.start(SWAP_SCRIPT, {
    args: [SWAP_PROGRAM, canary.directory, bait.directory],
    input: "none",
  });
  const reader = new OutputReader(attacker);
  await reader.sees(/ready/);
  const isDirect = await readsDirectly(context);
  const up = "../".repeat(45);
  const targets = [
    ...DOORS.map((door) => context.home(`${door}/secret.txt`)),
    context.home("name"),
    context.home(`deep/one/two/${up}${canary.file}`),
  ];
  const directories = [
    ...DOORS.map((door) => context.home(door)),
    context.home(`deep/one/two/${up}${canary.directory}`),
  ];
  const endMs = performance.now() + durationMs;
  const counts = new Map<string, { tried: number; done: number }>();
  /** Repeats an operation on every path. Its answers are checked; refusals are fine. */
  const keepOn = async (verb: string, paths: readonly string[], act: (path: string) => Promise<void>) => {
    const count = { tried: 0, done: 0 };
    counts.set(verb, count);
    // Every path at least twice, even on a slow host.
    for (let number = 0; performance.now() < endMs || number < 2 * paths.length; number++) {
      count.tried++;
      // Immediate refusals would starve the others.
      await nextTurn();
      try {
        await act(paths[number % paths.length] ?? "");
        count.done++;
      } catch (error) {
        if (error instanceof assert.AssertionError) throw error;
      }
    }
  };
  const verbs = [
    keepOn("read", targets, async (path) => {
      const found = await context.read(path);
      assert.ok(!found.includes(canary.secret), `read a file of the host by ${path}`);
    }),
    ...(isDirect
      ? [
          keepOn("read by the descriptor of", targets, async (path) => {
            await using file = await files.read(path);
            const target = Buffer.alloc(64);
            const count = await file.direct?.().then((direct) => direct?.read(target, 0));
            if (count === undefined) throw new Error("it is not handed over");
            assert.ok(!target.includes(canary.secret), `read a file of the host by a descriptor of ${path}`);
          }),
        ]
      : []),
    keepOn("stat", targets, async (path) => expectInside(canary, await files.stat(path), path)),
    keepOn("list", directories, async (path) => {
      for await (const entry of files.list(path, 2)) expectInside(canary, entry, path);
    }),
    keepOn("write", targets, async (path) => void (await context.write(path, "inside"))),
    keepOn("write a large file", targets, async (path) => {
      await context.write(path, Buffer.alloc(600_000));
    }),
    keepOn("write a new file", directories, async (path) => {
      await context.write(`${path}/new/er.txt`, "inside");
    }),
    keepOn("makeDir", directories, async (path) => void (await files.makeDir(`${path}/made/deeper`))),
    keepOn("move out of", targets, async (path) => {
      const taken = await files.move(path, context.home("taken"));
      expectInside(canary, taken, path);
    }),
    keepOn("move into", directories, async (path) => {
      await context.write(context.home("mine"), "inside");
      await files.move(context.home("mine"), `${path}/mine`);
    }),
    keepOn(
      "remove",
      [...targets, ...directories.flatMap((path) => [`${path}/made`, `${path}/.`, path])],
      (path) => files.remove(path),
    ),
    ...(files.watch === undefined
      ? []
      : [
          keepOn("watch", [context.home("window"), context.home("door")], async (path) => {
            const signal = AbortSignal.timeout(30);
            for await (const { name } of (await files.watch?.(path, { recursive: true, signal })) ?? []) {
              assert.ok(!name.startsWith("tick-"), `watched a directory of the host by ${path}`);
            }
          }),
        ]),
  ];
  const outcomes = await Promise.allSettled(verbs);
  const escapes = outcomes.flatMap((outcome) => (outcome.status === "rejected" ? [outcome.reason] : []));
  if (escapes.length > 0) throw escapes[0];
  await canary.verify();
  for (const [verb, { tried, done }] of counts) {
    assert.ok(done > 0, `${verb} was tried ${tried} times and never answered`);
  }
  // It has been running all the time.
  await attacker.kill("SIGKILL", "group");
  await reader.end();
}

/** Whether files are handed over here. */
async function readsDirectly(context: ConformanceContext): Promise<boolean> {
  await context.write(context.home("plain"), "inside");
  await using plain = await context.sandbox.files.read(context.home("plain"));
  return (await plain.direct?.()) !== undefined;
}

function expectInside(canary: Canary, info: FileInfo, path: string): void {
  assert.notEqual(info.modifiedAtMs, canary.modifiedAtMs, `told of a file of the host by ${path}`);
}

/** A host directory in which entries are created all the time. */
async function makeBait(): Promise<{ readonly directory: string } & AsyncDisposable> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-bait-"));
  const over = new AbortController();
  const ticking = (async () => {
    for (let number = 0; !over.signal.aborted; number++) {
      await writeFile(join(directory, `tick-${number % 100}`), String(number));
      await sleep(5);
    }
  })();
  return {
    directory,
    async [Symbol.asyncDispose]() {
      over.abort();
      await ticking;
      await rm(directory, { recursive: true });
    },
  };
}
