import assert from "node:assert/strict";
import { before, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { FilesystemEventType, TimeoutError } from "e2b";
import type { Frame } from "../../harness/clients/connect-frames.js";
import { type EnvdClient, envdClient } from "../../harness/clients/envd-client.js";
import { mountInside, reasonWithoutMounts } from "../../harness/host/mount-inside.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";
import { openProcess, shellRequest } from "../../harness/clients/process-stream.js";

const MAX_EVENTS = 40;
const MAX_WATCHERS = 6;
const withoutMounts = reasonWithoutMounts();

interface WireEvent {
  readonly name: string;
  readonly type: string;
  readonly entry?: { readonly path: string; readonly size?: string };
}

interface WireWatchMessage {
  readonly start?: object;
  readonly filesystem?: WireEvent;
  readonly keepalive?: object;
  readonly error?: { readonly code: string; readonly message: string };
}

const told = ({ name, type }: WireEvent): string => `${type.replace("EVENT_TYPE_", "")} ${name}`;
const messageOf = ({ message }: Frame) => message as WireWatchMessage;

/** The watches of table D.5 and point 0.1-19 of E2B's interface. Titles are the rows; docs/compatibility.md lists them. */
onEachBackend(
  "watches by their contract",
  ({ server, sandbox }) => {
    let envd: EnvdClient;
    before(() => {
      const { sandboxId } = sandbox();
      const token = server().sandboxes.get(sandboxId).record.accessToken;
      envd = envdClient({ url: server().url, sandboxId, token });
    });

    const call = (method: string, message: unknown) => envd.call(`filesystem.Filesystem/${method}`, message);
    const watchDir = (request: unknown, options = {}) =>
      envd.stream("filesystem.Filesystem/WatchDir", request, options);
    const put = async (path: string, body: string) => {
      const headers = { "content-type": "application/octet-stream" };
      const answer = await envd.send("POST", `/files?path=${encodeURIComponent(path)}`, { headers, body });
      assert.equal(answer.status, 200, answer.text);
    };
    const sh = async (script: string) => {
      const { end } = await (await openProcess(envd, shellRequest(script))).rest();
      assert.equal((end as { status: string }).status, "exit status 0", script);
    };
    const watch = async (path: string, more: object = {}): Promise<string> => {
      await call("MakeDir", { path });
      const { status, body } = await call("CreateWatcher", { path, ...more });
      assert.equal(status, 200, JSON.stringify(body));
      return body.watcherId;
    };
    const take = async (watcherId: string): Promise<readonly WireEvent[]> => {
      const { status, body } = await call("GetWatcherEvents", { watcherId });
      assert.equal(status, 200, JSON.stringify(body));
      return body.events ?? [];
    };
    const unwatch = (watcherId: string) => call("RemoveWatcher", { watcherId });

    it("0.1-19 a new small file is CREATE, CHMOD, WRITE, all there when its write is answered, and nothing more", async () => {
      for (const recursive of [false, true]) {
        const directory = `exact-${recursive}`;
        const id = await watch(directory, { recursive });
        for (let round = 0; round < 10; round += 1) {
          const name = `file-${round}.txt`;
          // Alternates between a raw body, which every client can send, and the form of the SDK.
          if (round % 2 === 0) await put(`${directory}/${name}`, "content");
          else await sandbox().files.write(`${directory}/${name}`, "content");
          // A late event of an earlier round would fail this assertion.
          assert.deepEqual(
            (await take(id)).map(told),
            [`CREATE ${name}`, `CHMOD ${name}`, `WRITE ${name}`],
            `round ${round}`,
          );
        }
        await put(`${directory}/file-0.txt`, "again");
        assert.deepEqual((await take(id)).map(told), ["WRITE file-0.txt"], "it was there before");
        await unwatch(id);
      }
    });

    it("D.5 CreateWatcher, MakeDir, Move and Remove are told at once, too", async () => {
      const id = await watch("verbs", { recursive: true });
      await call("MakeDir", { path: "verbs/made/deep" });
      assert.deepEqual((await take(id)).map(told), ["CREATE made", "CREATE made/deep", "CHMOD made"]);
      await call("Move", { source: "verbs/made", destination: "verbs/moved" });
      // A late event of the directory would show here.
      assert.deepEqual((await take(id)).map(told), ["RENAME made", "CREATE moved"]);
      await call("Remove", { path: "verbs/moved" });
      const removed: string[] = [];
      await eventually("both removals", async () => {
        removed.push(...(await take(id)).map(told));
        return removed.length >= 2;
      });
      assert.deepEqual(removed.toSorted(), ["REMOVE moved", "REMOVE moved/deep"]);
      await unwatch(id);
    });

    it("D.5 CreateWatcher, uploads of every kind are the same events, whoever watches", async () => {
      const large = "x".repeat(500_000);
      for (const recursive of [false, true]) {
        const directory = `uploads-${recursive}`;
        const id = await watch(directory, { recursive });
        const whole = ["CREATE large", "CHMOD large", "WRITE large"];
        const below = recursive ? ["CREATE n/m", "CREATE n/m/f", "WRITE n/m/f"] : [];
        const largeBelow = recursive ? ["CREATE l/f", "WRITE l/f"] : [];
        for (const [name, content, expected] of [
          ["empty", "", ["CREATE empty", "CHMOD empty"]],
          ["large", large, whole],
          // The new file replaces the old one.
          ["large", large, whole],
          ["n/m/f", "in new directories", ["CREATE n", ...below, "CHMOD n"]],
          ["l/f", large, ["CREATE l", ...largeBelow, "CHMOD l"]],
          ["l/f", "x", recursive ? ["WRITE l/f"] : []],
        ] as const) {
          await put(`${directory}/${name}`, content);
          assert.deepEqual((await take(id)).map(told), expected, `${directory}/${name}`);
        }
        await unwatch(id);
      }
    });

    it("D.5 CreateWatcher, what processes do is told", async () => {
      const id = await watch("processes");
      const steps = [
        ["printf 1 >processes/a", ["CREATE a", "WRITE a"]],
        ["printf 22 >>processes/a", ["WRITE a"]],
        ["chmod 600 processes/a", ["CHMOD a"]],
        ["rm processes/a", ["REMOVE a"]],
        ["mkdir processes/d", ["CREATE d"]],
        ["chmod 700 processes/d", ["CHMOD d"]],
        ["printf 1 >processes/b", ["CREATE b", "WRITE b"]],
        ["ln processes/b processes/c", ["CREATE c"]],
        ["touch processes/b", ["CHMOD b"]],
        ["touch processes/t", ["CREATE t", "CHMOD t"]],
        ["rm processes/c", ["REMOVE c"]],
      ] as const;
      for (const [script, expected] of steps) {
        await sh(script);
        const seen = new Set<string>();
        await eventually(`${script}: ${expected.join(", ")}`, async () => {
          for (const event of await take(id)) seen.add(told(event));
          return expected.every((event) => seen.has(event));
        });
        assert.deepEqual([...seen].toSorted(), [...expected].toSorted(), script);
      }
      await unwatch(id);
    });

    it("D.5 CreateWatcher, a move by a process", async () => {
      const id = await watch("moves");
      await put("moves/from", "x");
      await take(id);
      await sh("mkdir aside; printf 1 >aside/in");
      const steps = [
        ["mv moves/from moves/to", ["RENAME from", "CREATE to"]],
        ["mkdir moves/d", ["CREATE d"]],
        ["mv moves/d moves/e", ["RENAME d", "CREATE e"]],
        ["printf 1 >moves/new", ["CREATE new", "WRITE new"]],
        // Editors and tools save files so: a complete new file replaces the old one.
        ["mv moves/new moves/to", ["RENAME new", "CREATE to"]],
        ["rm moves/to", ["REMOVE to"]],
        // The new file may get the inode that was just released.
        ["printf 2 >moves/again", ["CREATE again", "WRITE again"]],
        ["mv aside/in moves/in", ["CREATE in"]],
        ["mv moves/in aside/out", ["RENAME in"]],
        ["mv aside/out moves/again", ["CREATE again"]],
        ["mv moves/e aside/e", ["RENAME e"]],
        ["mv aside/e moves/f", ["CREATE f"]],
        // The files are gone before a watcher can see them.
        ["printf 3 >moves/s && mv moves/s moves/again", ["CREATE s", "WRITE s", "RENAME s", "CREATE again"]],
        ["printf 4 >moves/brief && rm moves/brief", ["CREATE brief", "WRITE brief", "REMOVE brief"]],
        ["rm moves/again && printf 5 >moves/again", ["REMOVE again", "CREATE again", "WRITE again"]],
      ] as const;
      for (const [script, expected] of steps) {
        await sh(script);
        const seen: string[] = [];
        await eventually(`${script}: ${expected.join(", ")}`, async () => {
          seen.push(...(await take(id)).map(told));
          return seen.length >= expected.length;
        });
        assert.deepEqual(seen, expected, script);
      }
      await unwatch(id);
    });

    it("D.5 WatchDir, recursive: what is made right after its directory is told", async () => {
      const id = await watch("racing", { recursive: true });
      for (let round = 0; round < 5; round += 1) {
        const at = `r${round}`;
        await sh(
          `mkdir -p racing/${at}/b/c && printf x >racing/${at}/b/c/leaf && printf y >racing/${at}/top`,
        );
        const expected = ["", "/b", "/b/c", "/b/c/leaf", "/top"].map((below) => `CREATE ${at}${below}`);
        expected.push(`WRITE ${at}/b/c/leaf`);
        const seen = new Set<string>();
        const isAllSeen = async () => {
          for (const event of await take(id)) seen.add(told(event));
          return expected.every((event) => seen.has(event));
        };
        await eventually("every event", isAllSeen).catch((error: unknown) => {
          assert.deepEqual([...seen].toSorted(), expected.toSorted(), String(error));
        });
      }
      await unwatch(id);
    });

    it("D.5 WatchDir, start comes first, names are relative, entries come along where they are asked for", async () => {
      for (const includeEntry of [false, true]) {
        const directory = `streamed-${includeEntry}`;
        await call("MakeDir", { path: directory });
        await call("MakeDir", { path: `${directory}/sub` });
        const leaving = new AbortController();
        const messages: WireWatchMessage[] = [];
        const request = { path: directory, recursive: true, includeEntry };
        const reading = (async () => {
          for await (const frame of watchDir(request, { signal: leaving.signal }))
            messages.push(messageOf(frame));
        })();
        reading.catch(() => undefined);
        await eventually("start", () => messages.length > 0);
        assert.deepEqual([...messages], [{ start: {} }]);
        await put(`${directory}/sub/file.txt`, "12345");
        await eventually("three events", () => messages.length >= 4);
        const events = messages.slice(1).map(({ filesystem }) => filesystem);
        const named = { name: "sub/file.txt" };
        const entries = includeEntry ? [`/home/user/${directory}/sub/file.txt`, "5"] : undefined;
        assert.deepEqual(
          events.map((event) => [event && told(event), event?.entry && [event.entry.path, event.entry.size]]),
          ["CREATE", "CHMOD", "WRITE"].map((type) => [`${type} ${named.name}`, entries]),
        );
        await call("Remove", { path: `${directory}/sub/file.txt` });
        await eventually("the removal", () => messages.length >= 5);
        assert.deepEqual(messages.slice(4), [{ filesystem: { ...named, type: "EVENT_TYPE_REMOVE" } }]);
        leaving.abort();
        await assert.rejects(reading);
      }
    });

    it("D.5 WatchDir, what cannot be watched", async () => {
      await put("no-directory", "x");
      for (const [path, status, code, message] of [
        ["absent", 404, "not_found", /^path \/home\/user\/absent not found: /],
        ["no-directory", 400, "invalid_argument", /^path \/home\/user\/no-directory not a directory: /],
        ["~other", 400, "invalid_argument", /^cannot expand user-specific home dir$/],
      ] as const) {
        const unary = await call("CreateWatcher", { path });
        assert.deepEqual([unary.status, unary.body.code], [status, code]);
        assert.match(unary.body.message, message);
        const [only, ...more] = (await Array.fromAsync(watchDir({ path }))).map(messageOf);
        assert.deepEqual([only?.error, more], [unary.body, []]);
      }
    });

    it(
      "D.5 WatchDir and CreateWatcher, a network file system where it is not allowed",
      { skip: withoutMounts },
      async () => {
        await call("MakeDir", { path: "net/below" });
        const path = "/home/user/net/mount";
        await using _ = await mountInside(server(), sandbox(), { type: "fuse", path });
        const message = `cannot watch path on network filesystem: ${path}`;
        for (const recursive of [false, true]) {
          const unary = await call("CreateWatcher", { path, recursive });
          assert.deepEqual(unary, { status: 400, body: { code: "invalid_argument", message } });
          const messages = (await Array.fromAsync(watchDir({ path, recursive }))).map(messageOf);
          assert.deepEqual(messages, [{ error: unary.body }]);

          const allowed = { path, recursive, allowNetworkMounts: true };
          const created = await call("CreateWatcher", allowed);
          assert.equal(created.status, 200, JSON.stringify(created.body));
          await unwatch(created.body.watcherId);
          const leaving = new AbortController();
          const stream = watchDir(allowed, { signal: leaving.signal });
          assert.deepEqual(messageOf((await stream.next()).value as Frame), { start: {} });
          leaving.abort();
          await assert.rejects(stream.next());
        }
        const ignored = () => undefined;
        await assert.rejects(sandbox().files.watchDir(path, ignored), { name: "InvalidArgumentError" });
        const handle = await sandbox().files.watchDir(path, ignored, { allowNetworkMounts: true });
        await handle.stop();
        // Only the file system of the requested path counts. As with E2B, mounts below it are watched, too.
        const id = await watch("net", { recursive: true });
        await put("net/below/file", "x");
        assert.deepEqual((await take(id)).map(told), [
          "CREATE below/file",
          "CHMOD below/file",
          "WRITE below/file",
        ]);
        await unwatch(id);
      },
    );

    it("D.5 WatchDir, keepalives, and the deadline as an error that the SDK tells", async () => {
      await call("MakeDir", { path: "quiet" });
      const headers = { "keepalive-ping-interval": "1", "connect-timeout-ms": "1500" };
      const messages = (await Array.fromAsync(watchDir({ path: "quiet" }, { headers }))).map(messageOf);
      assert.deepEqual(messages.slice(0, -1), [{ start: {} }, { keepalive: {} }]);
      assert.equal(messages.at(-1)?.error?.code, "deadline_exceeded");

      const exits: unknown[] = [];
      await sandbox().files.watchDir("quiet", () => undefined, {
        timeoutMs: 1_000,
        onExit: (error) => void exits.push(error),
      });
      await eventually("onExit", () => exits.length === 1);
      assert.ok(exits[0] instanceof TimeoutError, String(exits[0]));
    });

    it("D.5 WatchDir, through the SDK, in the names that it has for events", async () => {
      await call("MakeDir", { path: "by-sdk" });
      const seen: string[] = [];
      const handle = await sandbox().files.watchDir(
        "by-sdk",
        ({ name, type, entry }) => void seen.push(`${type} ${name} ${entry?.size ?? "-"}`),
        { includeEntry: true },
      );
      await sandbox().files.write("by-sdk/f", "123");
      await eventually("three events", () => seen.length === 3);
      const { CREATE, CHMOD, WRITE } = FilesystemEventType;
      assert.deepEqual(seen, [`${CREATE} f 3`, `${CHMOD} f 3`, `${WRITE} f 3`]);
      await handle.stop();
    });

    it("D.5 GetWatcherEvents, returns and clears; unknown and removed watchers", async () => {
      const id = await watch("cleared");
      assert.match(id, /^w[a-z0-9]{20}$/);
      await put("cleared/f", "x");
      assert.equal((await take(id)).length, 3);
      assert.deepEqual((await call("GetWatcherEvents", { watcherId: id })).body, {});
      assert.deepEqual(await unwatch(id), { status: 200, body: {} });
      for (const watcherId of [id, "", "w", "__proto__"]) {
        for (const method of ["GetWatcherEvents", "RemoveWatcher"]) {
          assert.deepEqual(await call(method, { watcherId }), {
            status: 404,
            body: { code: "not_found", message: `watcher with id ${watcherId} not found` },
          });
        }
      }
    });

    it("D.5 CreateWatcher, too many events are an error and no silent loss", async () => {
      const id = await watch("flood");
      await sh(`for i in $(seq ${MAX_EVENTS}); do printf x >flood/$i; done`);
      let seen = 0;
      const lost = await eventually("the error", async () => {
        const { status, body } = await call("GetWatcherEvents", { watcherId: id });
        if (status !== 200) return { status, body };
        seen += body.events?.length ?? 0;
        // Events are lost only when more of them arrive between two calls: write all of them before the next call.
        await sh(`for i in $(seq ${MAX_EVENTS}); do printf y >>flood/$i; done`);
        return undefined;
      });
      assert.ok(seen <= 4 * MAX_EVENTS, String(seen));
      assert.deepEqual([lost.status, lost.body.code], [429, "resource_exhausted"]);
      assert.match(lost.body.message, /lost/);
      await unwatch(id);
    });

    it("D.5 CreateWatcher, a sandbox has no more watches than it may, and gets them back", async () => {
      await call("MakeDir", { path: "capped" });
      const ids = await Promise.all(Array.from({ length: MAX_WATCHERS }, () => watch("capped")));
      const refused = await call("CreateWatcher", { path: "capped" });
      assert.deepEqual([refused.status, refused.body.code], [429, "resource_exhausted"]);
      await Promise.all(ids.map(unwatch));
      await unwatch(await watch("capped"));
    });
  },
  {
    onJails: true,
    settings: { files: { maxBufferedEvents: MAX_EVENTS, maxWatchersPerSandbox: MAX_WATCHERS } },
  },
);
