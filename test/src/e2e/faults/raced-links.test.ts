import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtemp, readdir, readFile, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { setImmediate as nextTurn, setTimeout as pause } from "node:timers/promises";
import { API_KEY } from "../../harness/server/api-key.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

const DURATION_MS = 6000;
/** Whoever has written that file from outside has another one. */
const MODIFIED_S = 1_234_567_890;

/**
 * Run as root in a sandbox: puts links of each kind in the place of directories and files, and back, as fast as it can.
 * The targets are there inside, too, so that whatever follows a link finds something.
 */
const ATTACK = `
import ctypes, os, shutil, sys, time
canary, home, inside, seconds = sys.argv[1], sys.argv[2], sys.argv[3] == "yes", float(sys.argv[4])
# Archives are made by another user.
os.umask(0)
os.makedirs(home, exist_ok=True)
os.chdir(home)
libc = ctypes.CDLL(None, use_errno=True)
if inside:
    os.makedirs(canary, exist_ok=True)
    open(canary + "/secret.txt", "w").write("inside")
up = "../" * 40
targets = {
    "door": canary,
    "relative": up + canary[1:],
    "chain": "chain2",
    "proc": "/proc/self/root" + canary,
    "name": canary + "/secret.txt",
}
links = (("door/secret.txt", "name"), ("name", "door/hard.txt"), ("door/hard.txt", "relative/more.txt"))
def make(path):
    if path == "name":
        open(path, "w").write("inside")
    else:
        os.makedirs(path, exist_ok=True)
        open(path + "/secret.txt", "w").write("inside")
        os.link(path + "/secret.txt", path + "/hard.txt")
def clear(path):
    try:
        os.unlink(path)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass
print("ready", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    if not os.path.islink("chain2"):
        clear("chain2")
        os.symlink(canary, "chain2")
    for name, target in targets.items():
        other = name + ".link"
        try:
            if libc.renameat2(-100, name.encode(), -100, other.encode(), 2) == 0:
                continue
            if not os.path.lexists(name):
                make(name)
            if not (os.path.islink(name) or os.path.islink(other)):
                clear(other)
                os.symlink(target, other)
        except OSError:
            pass
    # A program of local-process would make them outside, as it may.
    for one, other in links if inside else ():
        try:
            os.link(one, other, follow_symlinks=False)
        except OSError:
            pass
print("done", flush=True)
`;

onEachBackend("links of root in a sandbox that race with transfers", ({ backend, server, sandbox }) => {
  let canary: string;
  let secret: string;
  before(async () => {
    canary = await mkdtemp(join(tmpdir(), "coppice-canary-"));
    secret = randomBytes(16).toString("hex");
    await writeFile(join(canary, "secret.txt"), secret, { mode: 0o600 });
    await utimes(join(canary, "secret.txt"), MODIFIED_S, MODIFIED_S);
  });
  after(() => rm(canary, { recursive: true }));

  const ask = async (path: string, method = "POST", body?: object): Promise<Response> =>
    fetch(server().url + path, {
      method,
      headers: { "x-api-key": API_KEY, ...(body && { "content-type": "application/json" }) },
      ...(body && { body: JSON.stringify(body) }),
    });

  it(
    "lead no upload, download, list, watch, rename, removal, archive or snapshot out of it",
    { timeout: 120_000 },
    async (t) => {
      const { files, commands, sandboxId } = sandbox();
      const home = backend === "local-process" ? "raced" : "/home/user/raced";
      const root = { user: "root" } as const;
      // Processes of local-process see the canary itself: they may not make one there.
      const isApart = backend !== "local-process";
      await files.write(`${home}/attack.py`, ATTACK, root);
      const attack = await commands.run(
        `python3 ${home}/attack.py ${canary} ${home} ${isApart ? "yes" : "no"} ${DURATION_MS / 1000}`,
        { ...root, background: true, timeoutMs: 0 },
      );
      const doors = ["door", "relative", "chain", "proc"].map((name) => `${home}/${name}`);
      const paths = [...doors.flatMap((door) => [`${door}/secret.txt`, `${door}/hard.txt`]), `${home}/name`];
      const endMs = performance.now() + DURATION_MS;
      const counts: Record<string, string> = {};
      /** Tries something on each path again and again. Refusals are fine. */
      const keepOn = async (verb: string, on: readonly string[], act: (path: string) => Promise<unknown>) => {
        let [tried, done] = [0, 0];
        let refusal: unknown;
        for (; performance.now() < endMs || tried < on.length; tried += 1) {
          await nextTurn();
          try {
            const answer = await act(on[tried % on.length] ?? "");
            assert.ok(!JSON.stringify(answer ?? "").includes(secret), `${verb} told the secret`);
            done += 1;
          } catch (error) {
            if (error instanceof assert.AssertionError) throw error;
            refusal = error;
          }
        }
        counts[verb] = `${done} of ${tried}`;
        assert.ok(done > 0, `${verb} was never answered: ${String(refusal)}`);
      };
      const archiveOf = (id: string): string => `/v1/sandboxes/${id}/files/export`;
      await Promise.all([
        keepOn("download", paths, (path) => files.read(path, root)),
        keepOn("upload", paths, (path) => files.write(path, "x".repeat(300_000), root)),
        keepOn("upload of several", doors, (door) =>
          files.write(
            [1, 2].map((name) => ({ path: `${door}/${name}/new.txt`, data: "inside" })),
            root,
          ),
        ),
        keepOn("list", doors, async (door) => {
          const found = await files.list(door, { ...root, depth: 2 });
          for (const { modifiedTime } of found)
            assert.notEqual(modifiedTime?.getTime(), MODIFIED_S * 1000, "told of a file of the host");
          return found;
        }),
        keepOn("information", paths, (path) => files.getInfo(path, root)),
        keepOn("makeDir", doors, (door) => files.makeDir(`${door}/made/deeper`, root)),
        keepOn("rename out of", paths, (path) => files.rename(path, `${home}/taken`, root)),
        keepOn("rename into", doors, async (door) => {
          await files.write(`${home}/mine`, "inside", root);
          return files.rename(`${home}/mine`, `${door}/mine`, root);
        }),
        keepOn("removal", [...paths, ...doors, ...doors.map((door) => `${door}/made`)], (path) =>
          files.remove(path, root),
        ),
        keepOn("watch", doors, async (door) => {
          const seen: string[] = [];
          const watch = await files.watchDir(door, ({ name }) => void seen.push(name), {
            ...root,
            recursive: true,
            timeoutMs: 5000,
          });
          await pause(50);
          await watch.stop();
          return seen;
        }),
        ...(isApart
          ? [
              keepOn("archive", doors, async (door) => {
                const answer = await ask(archiveOf(sandboxId), "POST", { src_dir: door });
                const bytes = await answer.text();
                if (answer.status !== 200) throw new Error(bytes);
                return bytes;
              }),
              keepOn("snapshot", [home], async () => {
                const answer = await ask(`/sandboxes/${sandboxId}/snapshots`, "POST", {});
                const { snapshotID } = (await answer.json()) as { readonly snapshotID: string };
                if (answer.status !== 201) throw new Error("no snapshot");
                const made = await ask("/sandboxes", "POST", { templateID: snapshotID });
                const { sandboxID } = (await made.json()) as { readonly sandboxID: string };
                const files = await ask(archiveOf(sandboxID), "POST", { src_dir: home });
                const bytes = await files.text();
                await ask(`/sandboxes/${sandboxID}`, "DELETE");
                await ask(`/templates/${snapshotID}`, "DELETE");
                if (made.status !== 201) throw new Error("no sandbox of it");
                return bytes;
              }),
            ]
          : []),
      ]);
      const { stdout } = await attack.wait();
      assert.match(stdout, /^ready\ndone\n$/);
      t.diagnostic(JSON.stringify(counts));
      assert.deepEqual(await readdir(canary), ["secret.txt"]);
      assert.equal(await readFile(join(canary, "secret.txt"), "utf8"), secret);
      const { mode, uid, gid, nlink, mtimeMs } = await stat(join(canary, "secret.txt"));
      assert.deepEqual([mode & 0o777, uid, gid, nlink, mtimeMs], [0o600, 0, 0, 1, MODIFIED_S * 1000]);
    },
  );
});
