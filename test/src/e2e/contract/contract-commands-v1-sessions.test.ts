import assert from "node:assert/strict";
import { after, before, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { entriesOfTar, eventually, tarArchive, type TarEntry } from "@coppice/core/testing";
import { WebSocket } from "ws";
import {
  DurableCommandsClient,
  type V1Sandbox,
  type V1Refusal,
} from "../../harness/clients/durable-commands-client.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { IdentityProvider } from "../../harness/server/identity-provider.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

const GRACE_MS = 1500;
const SCROLLBACK = 64 * 1024;

const provider = await IdentityProvider.open();
after(() => provider[Symbol.asyncDispose]());

interface Run {
  readonly run_id: string;
  readonly sandbox_id: string;
  readonly sandbox_name: string;
  readonly state: string;
  readonly exit_code?: number | null;
  readonly links?: { readonly logs: string };
  readonly timing: Readonly<Record<"create_ms" | "exec_ms" | "cleanup_ms" | "total_ms", number>>;
  readonly stdout: string;
  readonly stderr: string;
  readonly truncated: boolean;
  readonly error?: string;
}

/** Sections 5 and 6 of the contract of `/v1`, row by row, by a client that knows nothing else. */
onEachBackend(
  "/v1 terminals, runs and archives by their contract",
  ({ server }) => {
    let client: DurableCommandsClient;
    let box: V1Sandbox;

    before(async () => {
      client = new DurableCommandsClient({
        url: server().url,
        token: provider.token(),
        pollMs: 5,
        statusMs: 5,
      });
      box = await client.create({ image: "base" });
    });

    /** A terminal whose shell answers, with the answer away from what the terminal echoes. */
    const shell = async (sid: string, size?: { readonly cols: number; readonly rows: number }) => {
      const terminal = await client.attach(box.id, sid, size);
      terminal.type("echo re''ady\n");
      await eventually("the shell answers", () => /^ready\r?$/m.test(terminal.output));
      return terminal;
    };
    const says = (terminal: { readonly output: string }, text: RegExp) =>
      eventually(`the terminal says ${text}`, () => text.test(terminal.output));

    it("5. frames are binary and have a kind; what is typed is run, and the size is the first frame's", async () => {
      const terminal = await shell("plain", { cols: 101, rows: 33 });
      terminal.type("stty size\n");
      await says(terminal, /^33 101\r$/m);
      terminal.resize({ cols: 77, rows: 22 });
      await eventually("the new size", async () => {
        terminal.type("stty size\n");
        await pause(100);
        return /^22 77\r$/m.test(terminal.output);
      });
      assert.equal(terminal.socket.protocol, "", "no subprotocol");
      assert.deepEqual(terminal.unknown, []);
      terminal.type("exit\n");
      await eventually("its end", () => terminal.exitCode !== undefined);
    });

    it("5. text frames are ignored, also one that looks like input", async () => {
      const terminal = await shell("text");
      terminal.socket.send("\u0001echo fo''und\n");
      terminal.socket.send("");
      terminal.type("echo af''ter\n");
      await says(terminal, /^after\r$/m);
      assert.doesNotMatch(terminal.output, /found/);
      terminal.type("exit\n");
      await eventually("its end", () => terminal.exitCode !== undefined);
    });

    it("5. the exit frame has the code as int32, and the connection is closed after it", async () => {
      for (const code of [0, 7, 255]) {
        const terminal = await shell(`exit-${code}`);
        terminal.type(`exit ${code}\n`);
        await eventually("its end", () => terminal.exitCode !== undefined);
        assert.equal(terminal.exitCode, code);
        await eventually("it is closed", () => terminal.closed !== undefined);
        assert.equal(terminal.closed, 1000);
      }
    });

    it("5. the server pings, and never answers a ping with a ping", async () => {
      const terminal = await shell("ping");
      await eventually("pings of the server", () => terminal.pings >= 3);
      // The client's answers and these are no reason to ping.
      const before = terminal.pings;
      for (let sent = 0; sent < 50; sent += 1) terminal.send(5);
      await pause(300);
      assert.ok(terminal.pings - before <= 5, `${terminal.pings - before} pings`);
      assert.equal(terminal.closed, undefined);
      terminal.type("exit\n");
      await eventually("its end", () => terminal.exitCode !== undefined);
    });

    it("5. the same sid is the same terminal: its scrollback comes first, and every client has all output", async () => {
      const sid = "with space/slash %25 ä";
      const one = await shell(sid);
      one.type("marker=kept; echo fi''rst\n");
      await says(one, /^first\r$/m);
      const two = await client.attach(box.id, sid);
      await says(two, /^first\r$/m);
      two.type("echo $marker-by-two\n");
      await says(one, /^kept-by-two\r$/m);
      await says(two, /^kept-by-two\r$/m);
      await one.hangUp();
      await two.hangUp();
      const three = await client.attach(box.id, sid);
      await says(three, /^kept-by-two\r$/m);
      three.type("echo $marker-after\n");
      await says(three, /^kept-after\r$/m);
      const stranger = await client.attach(box.id, "another");
      stranger.type("echo x${marker}x\n");
      await says(stranger, /^xx\r$/m);
      for (const terminal of [three, stranger]) terminal.type("exit 3\n");
      await eventually("their end", () => three.exitCode === 3 && stranger.exitCode === 3);
    });

    it("5. the scrollback is bounded", async () => {
      const terminal = await shell("scroll");
      terminal.type("seq 1 60000; echo do''ne\n");
      await says(terminal, /^done\r$/m);
      await terminal.hangUp();
      const again = await client.attach(box.id, "scroll");
      await says(again, /^done\r$/m);
      assert.ok(again.output.length <= SCROLLBACK + 1024, String(again.output.length));
      assert.ok(again.output.length > SCROLLBACK / 2, String(again.output.length));
      again.type("exit\n");
      await eventually("its end", () => again.exitCode !== undefined);
    });

    it("5. a terminal without clients lives for the grace and no longer", async () => {
      const terminal = await shell("grace");
      terminal.type("marker=alive\n");
      terminal.type("echo s''et\n");
      await says(terminal, /^set\r$/m);
      await terminal.hangUp();
      await pause(GRACE_MS / 3);
      const within = await client.attach(box.id, "grace");
      within.type("echo x${marker}x\n");
      await says(within, /^xalivex\r$/m);
      await within.hangUp();
      await eventually("its processes end", async () => {
        const again = await client.attach(box.id, "grace");
        again.type("echo x${marker}x\n");
        await says(again, /^x(alive)?x\r$/m);
        const isNew = /^xx\r$/m.test(again.output);
        if (isNew) again.type("exit\n");
        await again.hangUp();
        if (!isNew) await pause(GRACE_MS * 1.5);
        return isNew;
      });
    });

    it("5. frames that are none leave the terminal and the server alive", async () => {
      const terminal = await shell("odd");
      terminal.socket.send(Buffer.alloc(0));
      for (const kind of [0, 2, 4, 6, 99, 255]) terminal.send(kind, Buffer.from("x"));
      for (const payload of [[], [0], [0, 80, 0], [0, 0, 0, 0], [255, 255, 255, 255], [0, 80, 0, 24, 1]])
        terminal.send(3, Buffer.from(payload));
      await pause(100);
      const again = terminal.closed === undefined ? terminal : await client.attach(box.id, "odd");
      again.type("echo still-al''ive\n");
      await says(again, /^still-alive\r$/m);
      again.type("exit\n");
      await eventually("its end", () => again.exitCode !== undefined);
    });

    it("5. an upgrade that is refused has a status and the error's body", async () => {
      for (const [path, token, status] of [
        ["/v1/sandboxes/nobody-here/sessions/x", provider.token(), 404],
        [`/v1/sandboxes/${box.id}/sessions/x`, provider.token({ scp: ["read:sandbox"] }), 403],
        [`/v1/sandboxes/${box.id}/sessions/x`, provider.token({ org_id: "rival" }), 404],
        [`/v1/sandboxes/${box.id}/sessions/x`, "nonsense", 401],
        [`/v1/sandboxes/${box.id}/sessions/x`, provider.token({ exp: 1 }), 401],
        [`/v1/sandboxes/${box.id}/sessions/%zz`, provider.token(), 400],
      ] as const) {
        const answer = await refusedUpgrade(`${server().url}${path}`, token);
        assert.equal(answer.status, status, `${path}: ${answer.text}`);
        const { code, message, request_id: id } = JSON.parse(answer.text) as V1Refusal["body"];
        assert.deepEqual([typeof code, typeof message, typeof id], ["string", "string", "string"]);
      }
      // Asked for without an upgrade it is a mistake of the client's.
      const { status } = await client.ask("GET", `/sandboxes/${box.id}/sessions/x`);
      assert.ok(status >= 400 && status < 500, String(status));
    });

    it("6. a one-shot run answers when it has ended, with everything, and its sandbox is gone", async () => {
      const answer = await client.oneShot({
        argv: ["/bin/sh", "-c", "echo out $A; echo err >&2; pwd >&2; exit 9"],
        env: { A: "b" },
        cwd: "/tmp",
        image: "base",
        timeout_seconds: 60,
      });
      assert.ok(answer.status === 200 || answer.status === 201, answer.text);
      const run = answer.json() as Run;
      assert.deepEqual([run.exit_code, run.stdout, run.truncated], [9, "out b\n", false]);
      assert.match(run.stderr, /^err\n(\/.*)?\/tmp\n$/);
      for (const name of ["create_ms", "exec_ms", "cleanup_ms", "total_ms"] as const)
        assert.ok(run.timing[name] >= 0, name);
      assert.ok(run.timing.total_ms >= run.timing.exec_ms);
      assert.ok(run.sandbox_id.length > 0 && run.sandbox_name.length > 0 && run.run_id.length > 0);
      assert.equal((await client.ask("GET", `/sandboxes/${run.sandbox_id}`)).status, 404);
      const again = await client.call<Run>("GET", `/one-shot-runs/${run.run_id}`);
      assert.deepEqual([again.exit_code, again.state, again.stdout], [9, run.state, run.stdout]);
      const logs = run.links?.logs ?? `/v1/one-shot-runs/${run.run_id}/logs`;
      const path = logs.replace(/^https?:\/\/[^/]+/, "").replace(/^\/v1/, "");
      const page = await client.call<Record<string, unknown>>("GET", `${path}?cursor=0`);
      assert.deepEqual(Object.keys(page).toSorted(), ["bytes", "exit_code", "next_cursor", "phase"]);
      assert.deepEqual([page["phase"], page["exit_code"]], ["exited", 9]);
      assert.match(String(page["bytes"]), /out b\n/);
    });

    it("6. a run with detach is followed by its logs and its state, and DELETE ends it", async () => {
      const answer = await client.oneShot(
        { argv: ["/bin/sh", "-c", "echo begun; sleep 0.5; echo done"] },
        "?detach=true",
      );
      assert.ok([200, 201, 202].includes(answer.status), answer.text);
      const { run_id: id, exit_code: code } = answer.json() as Run;
      assert.equal(code ?? null, null);
      const ended = await eventually("its end", async () => {
        const run = await client.call<Run>("GET", `/one-shot-runs/${id}`);
        return typeof run.exit_code === "number" ? run : undefined;
      });
      assert.deepEqual([ended.exit_code, ended.stdout], [0, "begun\ndone\n"]);
      const page = await client.call<{ readonly bytes: string }>("GET", `/one-shot-runs/${id}/logs?cursor=6`);
      assert.equal(page.bytes, "done\n");
      const long = (await client.oneShot({ argv: ["sleep", "300"] }, "?detach=true")).json() as Run;
      const { status } = await client.ask("DELETE", `/one-shot-runs/${long.run_id}`);
      assert.ok(status >= 200 && status < 300, String(status));
      await eventually("its sandbox is gone", async () => {
        const { sandbox_id: sandbox } = (
          await client.ask("GET", `/one-shot-runs/${long.run_id}`)
        ).json() as Run;
        return sandbox === undefined || (await client.ask("GET", `/sandboxes/${sandbox}`)).status === 404;
      });
      const second = await client.ask("DELETE", `/one-shot-runs/${long.run_id}`);
      assert.ok(second.status < 300 || second.status === 404, String(second.status));
    });

    it("6. a run that takes too long, and one whose program is not there, say so", async () => {
      const late = (await client.oneShot({ argv: ["sleep", "300"], timeout_seconds: 1 })).json() as Run;
      assert.ok((late.error ?? "").length > 0, JSON.stringify(late));
      const missing = (await client.oneShot({ argv: ["no-such-program"] })).json() as Run;
      assert.equal(missing.exit_code, 127, JSON.stringify(missing));
      const unknown = await client.oneShot({ argv: ["true"], image: "no-such-template" });
      assert.ok(unknown.status === 400 || unknown.status === 404, unknown.text);
      const loud = (await client.oneShot({ argv: ["/bin/sh", "-c", "yes | head -c 3000000"] })).json() as Run;
      assert.equal(loud.truncated, true);
      assert.ok(loud.stdout.length <= 3_000_000 && loud.exit_code === 0);
    });

    it("6. export is a tar file of a folder or of paths, named after the sandbox", async () => {
      await client.run(box.id, [
        "/bin/sh",
        "-c",
        "mkdir -p out/deep; echo a > out/a; echo b > out/deep/b; ln -s a out/link; echo c > c",
      ]);
      const whole = await client.export(box.id, { src_dir: "/workspace/out" });
      assert.equal(whole.status, 200, whole.text);
      assert.equal(whole.headers["content-type"], "application/x-tar");
      assert.match(whole.headers["content-disposition"] ?? "", new RegExp(`filename="?${box.id}\\.tar"?`));
      const entries = entriesOfTar(whole.body);
      const content = (suffix: string) => [...entries].find(([name]) => name.endsWith(suffix))?.[1];
      assert.deepEqual([content("a"), content("deep/b")], ["a\n", "b\n"], JSON.stringify([...entries]));
      const some = entriesOfTar(
        (await client.export(box.id, { src_dir: "/workspace", paths: ["c", "out/deep"] })).body,
      );
      const names = [...some.keys()].filter((name) => !name.endsWith("/")).toSorted();
      assert.deepEqual(
        names.map((name) => name.replace(/^\.\//, "")),
        ["c", "out/deep/b"],
      );
      for (const wanted of [
        { src_dir: "/workspace/none" },
        { src_dir: "/workspace", paths: ["none"] },
        { src_dir: "/workspace", paths: ["-c"] },
        { src_dir: "/workspace", paths: ["--checkpoint-action=exec=touch x"] },
        { src_dir: "-out" },
        { src_dir: 7 },
      ]) {
        const { status, text } = await client.export(box.id, wanted);
        assert.ok(status >= 400 && status < 500, `${JSON.stringify(wanted)}: ${status}`);
        assert.equal(typeof (JSON.parse(text) as V1Refusal["body"]).code, "string");
      }
    });

    it("6. import unpacks below dest and counts", async () => {
      const archive = tarArchive([
        { name: "in/", type: "5" },
        { name: "in/a", body: "a ä\n" },
        { name: "in/link", type: "2", link: "a" },
        { name: "b", body: "b\n" },
      ]);
      const answer = await client.import(box.id, "/workspace/dest", archive);
      assert.ok(answer.status === 200 || answer.status === 201, answer.text);
      const { imported, bytes, dest, ...more } = answer.json() as Record<string, unknown>;
      assert.deepEqual(more, {});
      assert.ok(imported === 3 || imported === 4, String(imported));
      assert.equal(bytes, Buffer.byteLength("a ä\nb\n"));
      assert.match(String(dest), /\/workspace\/dest$/);
      const { output } = await client.run(box.id, ["/bin/sh", "-c", "cat dest/in/a dest/in/link dest/b"]);
      assert.equal(output, "a ä\na ä\nb\n");
      // Round trip.
      const out = entriesOfTar((await client.export(box.id, { src_dir: "/workspace/dest" })).body);
      assert.ok([...out.values()].includes("a ä\n"));
    });

    it("6. an archive with an entry that leaves dest is refused as a whole", async () => {
      const good: TarEntry = { name: "good", body: "good\n" };
      const bad: Readonly<Record<string, readonly TarEntry[]>> = {
        "an absolute name": [{ name: "/etc/evil", body: "x" }],
        "a name with ..": [{ name: "a/../../evil", body: "x" }],
        "just ..": [{ name: "..", type: "5" }],
        "a symbolic link out": [{ name: "s", type: "2", link: "../../../etc" }],
        "an absolute symbolic link": [{ name: "s", type: "2", link: "/etc/passwd" }],
        "a file through a link": [
          { name: "s", type: "2", link: ".." },
          { name: "s/evil", body: "x" },
        ],
        "a hard link out": [{ name: "h", type: "1", link: "../../../etc/passwd" }],
        "an absolute hard link": [{ name: "h", type: "1", link: "/etc/passwd" }],
        "a character device": [{ name: "null", type: "3" }],
        "a block device": [{ name: "disk", type: "4" }],
        "a FIFO": [{ name: "fifo", type: "6" }],
      };
      for (const [what, entries] of Object.entries(bad)) {
        const { status, text } = await client.import(
          box.id,
          "/workspace/refused",
          tarArchive([good, ...entries, good]),
        );
        assert.ok(status >= 400 && status < 500, `${what}: ${status} ${text}`);
        const { code } = JSON.parse(text) as V1Refusal["body"];
        assert.equal(typeof code, "string", what);
      }
      for (const [what, body] of [
        ["no archive", Buffer.from("not a tar file at all".repeat(100))],
        ["half an archive", tarArchive([good, { name: "long", body: "x".repeat(5000) }]).subarray(0, 3000)],
      ] as const) {
        const { status } = await client.import(box.id, "/workspace/refused", body);
        assert.ok(status >= 400 && status < 500, `${what}: ${status}`);
      }
      const { output } = await client.run(box.id, [
        "/bin/sh",
        "-c",
        "find refused -type f -o -type l | sort",
      ]);
      assert.doesNotMatch(output, /refused\//, "nothing was written");
    });

    it("6. an import without dest, or without an archive, is a mistake of the client's", async () => {
      const boundary = "xyz";
      const part = (disposition: string, body: string) =>
        `--${boundary}\r\nContent-Disposition: form-data; ${disposition}\r\n\r\n${body}\r\n`;
      const headers = { "content-type": `multipart/form-data; boundary=${boundary}` };
      for (const body of [
        `${part('name="tarball"; filename="a.tar"', "x")}--${boundary}--\r\n`,
        `${part('name="dest"', "/workspace/x")}--${boundary}--\r\n`,
        `--${boundary}--\r\n`,
        "",
      ]) {
        const { status } = await client.ask("POST", `/sandboxes/${box.id}/files/import`, body, headers);
        assert.ok(status >= 400 && status < 500, `${body}: ${status}`);
      }
      const { status } = await client.ask("POST", `/sandboxes/${box.id}/files/import`, {
        dest: "/workspace",
      });
      assert.ok(status >= 400 && status < 500, String(status));
    });
  },
  {
    settings: {
      "access": { apiKeys: [API_KEY], jwt: provider.settings },
      "commands-v1": {
        terminalGrace: `${GRACE_MS}ms`,
        pingInterval: "250ms",
        scrollback: `${SCROLLBACK / 1024}KiB`,
      },
    },
  },
);

/** The answer to an upgrade that is no upgrade. */
async function refusedUpgrade(
  url: string,
  token: string,
): Promise<{ readonly status: number; readonly text: string }> {
  const { promise, resolve, reject } = Promise.withResolvers<{
    readonly status: number;
    readonly text: string;
  }>();
  const socket = new WebSocket(url.replace(/^http/, "ws"), { headers: { authorization: `Bearer ${token}` } });
  socket.on("unexpected-response", (_request, response) => {
    response
      .setEncoding("utf8")
      .toArray()
      .then((parts) => resolve({ status: response.statusCode ?? 0, text: parts.join("") }), reject);
  });
  socket.on("open", () => {
    socket.close();
    reject(new Error(`${url} is upgraded`));
  });
  socket.on("error", () => undefined);
  return promise;
}
