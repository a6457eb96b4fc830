import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { eventually } from "@coppice/core/testing";
import {
  DurableCommandsClient,
  type V1Command,
  type V1Sandbox,
  V1Refusal,
} from "../../harness/clients/durable-commands-client.js";
import { envdClient } from "../../harness/clients/envd-client.js";
import { openProcess, shellRequest } from "../../harness/clients/process-stream.js";
import { Scrape } from "../../harness/clients/scrape.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { IdentityProvider } from "../../harness/server/identity-provider.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

const UUID_V7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;
const LOG_LIMIT = 1 << 20;

const provider = await IdentityProvider.open();
const directory = await mkdtemp(join(tmpdir(), "coppice-v1-"));
after(async () => {
  await provider[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

const sh = (script: string) => ["/bin/sh", "-c", script];

/** Sections 1, 3, 4 and 7 of the contract of `/v1`, row by row, by a client that knows nothing else. */
onEachBackend(
  "/v1 by its contract",
  ({ backend, server, sandbox: sdk }) => {
    let client: DurableCommandsClient;
    let box: V1Sandbox;

    const clientOf = (token: string) =>
      new DurableCommandsClient({ url: server().url, token, pollMs: 5, statusMs: 5 });
    const as = (claims: object) => clientOf(provider.token({ org_id: "acme", ...claims }));
    /** A client of the tenant that the SDK's key belongs to. */
    const keyHolder = () => clientOf(API_KEY);

    before(async () => {
      client = as({});
      box = await client.create({ image: "base", tier: "ephemeral" });
    });

    /** The refusal of an exchange. */
    const refused = async (what: Promise<unknown>): Promise<V1Refusal> => {
      const error = await what.then(
        (value) => assert.fail(`not refused: ${JSON.stringify(value)}`),
        (reason: unknown) => reason,
      );
      assert.ok(error instanceof V1Refusal, String(error));
      const { code, message, request_id, ...more } = error.body;
      assert.deepEqual(
        [typeof code, typeof message, typeof request_id, more],
        ["string", "string", "string", {}],
      );
      assert.match(code, /^[a-z][a-z0-9_]*$/);
      assert.ok(request_id.length > 0 && message.length > 0);
      return error;
    };
    const isRefused = async (what: Promise<unknown>, status: number, why: string): Promise<void> => {
      const refusal = await refused(what);
      assert.equal(refusal.status, status, `${why}: ${refusal.message}`);
    };
    const gone = (id: string) => isRefused(client.sandbox(id), 404, "a deleted sandbox");
    /** A command whose output ends with the word `ready`. */
    const started = async (ref: string, script: string): Promise<string> => {
      const { command_id: id } = await client.launch(ref, sh(`${script}; echo ready; exec sleep 300`), {
        detach: true,
      });
      await eventually("the command is ready", async () =>
        (await client.page(ref, id, 0)).bytes.endsWith("ready\n"),
      );
      return id;
    };

    it("1. lists are bare arrays", async () => {
      const listed = await client.list();
      assert.ok(Array.isArray(listed) && listed.some(({ id }) => id === box.id));
      await client.run(box.id, ["true"]);
      assert.ok(Array.isArray(await client.call("GET", `/sandboxes/${box.id}/commands`)));
    });

    it("1. what is refused has a code, a message and the id of the request, which a header repeats", async () => {
      const id = box.id;
      const bad: readonly (readonly [string, string, unknown, number])[] = [
        ["GET", "/sandboxes/nobody-here", undefined, 404],
        ["GET", "/no/such/route", undefined, 404],
        ["GET", `/sandboxes/${id}/commands/0193a000-0000-7000-8000-000000000000`, undefined, 404],
        ["GET", `/sandboxes/${id}/commands/made-up/logs?cursor=0`, undefined, 404],
        ["DELETE", `/sandboxes/${id}/commands/made-up`, undefined, 404],
        ["POST", "/sandboxes", "{", 400],
        ["POST", "/sandboxes", [], 400],
        ["POST", "/sandboxes", {}, 400],
        ["POST", "/sandboxes", { image: 7 }, 400],
        ["POST", "/sandboxes", { image: "base", tier: "eternal" }, 400],
        ["POST", "/sandboxes", { image: "base", cpu: "many" }, 400],
        ["POST", "/sandboxes", { image: "base", memory: "4 elephants" }, 400],
        ["POST", "/sandboxes", { image: "base", name: "Not A Slug" }, 400],
        ["POST", `/sandboxes/${id}/commands`, {}, 400],
        ["POST", `/sandboxes/${id}/commands`, { argv: [] }, 400],
        ["POST", `/sandboxes/${id}/commands`, { argv: "echo" }, 400],
        ["POST", `/sandboxes/${id}/commands`, { argv: ["echo", "\0"] }, 400],
        ["POST", `/sandboxes/${id}/commands`, { argv: ["true"], cwd: "/no/such" }, 400],
        ["POST", `/sandboxes/${id}/extend`, {}, 400],
        ["POST", `/sandboxes/${id}/extend`, { deadline: "soon" }, 400],
        ["PATCH", `/sandboxes/${id}`, { name: "Not A Slug" }, 400],
        ["POST", "/one-shot-runs", { argv: [] }, 400],
        ["GET", "/one-shot-runs/made-up", undefined, 404],
      ];
      for (const [method, path, body, status] of bad)
        await isRefused(client.call(method, path, body), status, `${method} ${path} ${JSON.stringify(body)}`);
      const answer = await client.ask("GET", "/sandboxes/nobody-here");
      assert.equal(answer.headers["x-request-id"], (answer.json() as V1Refusal["body"]).request_id);
      const unknown = await refused(client.create({ image: "no-such-template" }));
      assert.ok(unknown.status === 400 || unknown.status === 404, unknown.message);
    });

    it("1. {id} is an id or a name on every route, and names belong to who gave them", async () => {
      const stranger = as({ org_id: "rival", sub: "eve" });
      const name = `twice-${backend}`;
      const made = await client.create({ image: "base", name });
      const theirs = await stranger.create({ image: "base", name });
      assert.notEqual(made.id, theirs.id);
      assert.equal((await client.sandbox(name)).id, made.id);
      assert.equal((await stranger.sandbox(name)).id, theirs.id);
      assert.deepEqual(
        (await client.list(`?name=${name}`)).map(({ id }) => id),
        [made.id],
      );
      assert.deepEqual(await client.list("?name=nobody-has-it"), []);
      assert.equal((await client.resolve(name)).id, made.id);
      const { output, commandId } = await client.run(name, ["echo", "by name"]);
      assert.equal(output, "by name\n");
      assert.equal((await client.command(made.id, commandId)).command_id, commandId, "the same row by id");
      for (const ref of [made.id, box.id]) {
        await isRefused(stranger.sandbox(ref), 404, "somebody else's sandbox");
        await isRefused(stranger.command(ref, commandId), 404, "somebody else's command");
      }
      await isRefused(
        client.create({ image: "base", name }),
        409,
        "a name that the caller has given already",
      );
      await client.remove(name);
      await stranger.remove(name);
      await gone(made.id);
      await isRefused(client.sandbox(name), 404, "a name without a sandbox");
      const again = await client.create({ image: "base", name });
      await client.remove(again.id);
    });

    it("3. POST sandboxes answers with the whole sandbox", async () => {
      const before = Date.now();
      const made = await client.create({
        image: "base",
        name: `whole-${backend}`,
        tier: "ephemeral",
        disk_gb: 3,
        auto_stop_minutes: 7,
        auto_delete_hours: 2,
        env: { GREETING: "hello" },
      });
      const { id, created_at: createdAt, last_activity_at: _active, deadline = "", ...rest } = made;
      assert.match(id, /^\S+$/);
      assert.ok(Math.abs(Date.parse(createdAt) - before) < 60_000);
      assert.ok(Math.abs(Date.parse(deadline) - before - 2 * 3_600_000) < 60_000, deadline);
      const {
        image,
        cpu_milli: _cpu,
        memory_mb: _memory,
        ...exact
      } = rest as typeof rest & { readonly image?: string };
      assert.equal(image, "base", "more than the contract asks for");
      assert.deepEqual(exact, {
        name: `whole-${backend}`,
        state: "running",
        tier: "ephemeral",
        auto_stop_minutes: 7,
        disk_gb: 3,
        workdir: "/workspace",
      });
      assert.deepEqual(Object.keys(await client.sandbox(id)).toSorted(), Object.keys(made).toSorted());
      const { output } = await client.run(id, sh("echo $GREETING; pwd"));
      assert.match(output, /^hello\n(\/.*)?\/workspace\n$/);
      await client.remove(id);
    });

    it("3. POST sandboxes takes an image alone; ttl is another word for the time to its end", async () => {
      const bare = await client.create({ image: "base" });
      assert.ok(["ephemeral", "persistent"].includes(bare.tier), bare.tier);
      assert.ok(bare.name.length > 0);
      assert.equal((await client.sandbox(bare.name)).id, bare.id);
      const short = await client.create({ image: "base", ttl: "90m" });
      assert.ok(
        Math.abs(Date.parse(short.deadline ?? "") - Date.now() - 90 * 60_000) < 60_000,
        short.deadline,
      );
      await client.remove(bare.id);
      await client.remove(short.id);
    });

    it("3. cpu and memory are taken in every form, and are in the answer as numbers", async () => {
      for (const [wanted, milli, megabytes] of [
        [{ cpu: "1.5", memory: "4Gi" }, 1500, 4096],
        [{ cpu: "1500m", memory: "512Mi" }, 1500, 512],
        [{ cpu: "2" }, 2000, undefined],
      ] as const) {
        const made = await client.create({ image: "base", ...wanted });
        assert.equal(made.cpu_milli, milli, JSON.stringify(wanted));
        if (megabytes !== undefined) assert.equal(made.memory_mb, megabytes, JSON.stringify(wanted));
        await client.remove(made.id);
      }
    });

    it("3. PATCH gives a new name, and the old one is free", async () => {
      const made = await client.create({ image: "base", name: `old-${backend}` });
      await client.rename(made.id, `new-${backend}`);
      assert.equal((await client.sandbox(`new-${backend}`)).id, made.id);
      await isRefused(client.sandbox(`old-${backend}`), 404, "the old name");
      await client.remove(`new-${backend}`);
    });

    it("3. start, stop and extend take an empty body and null; a persistent sandbox keeps its files", async () => {
      const made = await client.create({ image: "base", tier: "persistent" });
      await client.run(made.id, sh("echo kept > file"));
      for (const body of [undefined, "", null, {}] as const) {
        const sent = JSON.stringify(body);
        await client.stop(made.id, body);
        await eventually("it is stopped", async () => (await client.sandbox(made.id)).state === "stopped");
        await client.stop(made.id, body);
        await client.start(made.id, body);
        await eventually("it runs", async () => (await client.sandbox(made.id)).state === "running");
        await client.start(made.id, body);
        assert.equal((await client.run(made.id, ["cat", "file"])).output, "kept\n", sent);
      }
      await client.remove(made.id);
      await gone(made.id);
    });

    it("3. a stopped sandbox refuses commands and is listed", async () => {
      const made = await client.create({ image: "base", tier: "persistent" });
      await client.stop(made.id);
      assert.equal((await client.list()).find(({ id }) => id === made.id)?.state, "stopped");
      const { status } = await refused(client.launch(made.id, ["true"]));
      assert.ok(status >= 400 && status < 500, String(status));
      await client.remove(made.id);
    });

    it("3. POST extend moves the deadline by hours or to a time", async () => {
      const made = await client.create({ image: "base", auto_delete_hours: 1 });
      const near = (time: string | undefined, wanted: number) =>
        assert.ok(Math.abs(Date.parse(time ?? "") - wanted) < 60_000, time);
      await client.extend(made.id, { auto_delete_hours: 5 });
      near((await client.sandbox(made.id)).deadline, Date.now() + 5 * 3_600_000);
      const wanted = Date.now() + 9 * 3_600_000;
      await client.extend(made.id, { deadline: new Date(wanted).toISOString() });
      near((await client.sandbox(made.id)).deadline, wanted);
      await client.remove(made.id);
    });

    it("3. DELETE answers with any 2xx, and the sandbox is gone from the list", async () => {
      const made = await client.create({ image: "base" });
      await client.remove(made.id);
      await gone(made.id);
      assert.ok(!(await client.list()).some(({ id }) => id === made.id));
    });

    it("3. one Idempotency-Key makes one sandbox, and one command", async () => {
      const headers = { "idempotency-key": `once-${backend}` };
      const create = () => client.call<V1Sandbox>("POST", "/sandboxes", { image: "base" }, headers);
      const [one, two] = await Promise.all([create(), create()]);
      assert.equal(one.id, two.id);
      const launch = () => client.launch(one.id, sh("echo x >> times"), {}, headers);
      const [first, second] = await Promise.all([launch(), launch()]);
      assert.equal(first.command_id, second.command_id);
      await client.settled(one.id, first.command_id);
      assert.equal((await client.run(one.id, ["cat", "times"])).output, "x\n");
      await client.remove(one.id);
    });

    it("4. POST commands answers at once with an id, the phase and the time, with detach and without", async () => {
      for (const more of [{}, { detach: true }, { detach: false }]) {
        const answer = await client.ask("POST", `/sandboxes/${box.id}/commands`, {
          argv: ["sleep", "0.3"],
          ...more,
        });
        assert.ok([200, 201, 202].includes(answer.status), answer.text);
        const command = answer.json() as V1Command;
        assert.match(command.command_id, UUID_V7);
        assert.equal(command.phase, "running");
        assert.ok(Math.abs(Date.parse(command.started_at) - Date.now()) < 60_000);
        const status = await client.command(box.id, command.command_id);
        assert.deepEqual(
          [status.command_id, status.phase, status.exit_code, status.started_at, status.exited_at ?? null],
          [command.command_id, "running", null, command.started_at, null],
        );
        const ended = await client.settled(box.id, command.command_id);
        assert.deepEqual([ended.phase, ended.exit_code], ["exited", 0]);
        assert.ok(Date.parse(ended.exited_at ?? "") >= Date.parse(ended.started_at));
      }
    });

    it("4. argv is passed as it is, with env and cwd", async () => {
      const argv = ["printf", "%s|", "a b", "$HOME", "'", "", "ä"];
      assert.equal((await client.run(box.id, argv)).output, "a b|$HOME|'||ä|");
      const { output } = await client.run(box.id, sh("echo $A; pwd"), { env: { A: "b=c" }, cwd: "/tmp" });
      assert.match(output, /^b=c\n(\/.*)?\/tmp\n$/);
      assert.match(
        (await client.run(box.id, ["pwd"])).output,
        /\/workspace\n$/,
        "the workdir unless cwd is given",
      );
    });

    it("4. the exit code is the command's, from the log and from its status", async () => {
      const { commandId, phase, exitCode, output } = await client.run(
        box.id,
        sh("echo out; echo err >&2; exit 43"),
      );
      assert.deepEqual({ phase, exitCode, output }, { phase: "exited", exitCode: 43, output: "out\nerr\n" });
      const page = await client.page(box.id, commandId, 0);
      assert.deepEqual(page, { bytes: "out\nerr\n", next_cursor: 8, phase: "exited", exit_code: 43 });
      const missing = await client.run(box.id, ["no-such-program"]);
      assert.deepEqual([missing.phase, missing.exitCode], ["exited", 127]);
      assert.match(missing.output, /no-such-program/);
      const shot = await client.run(box.id, sh("kill -9 $$"));
      assert.deepEqual([shot.phase, shot.exitCode], ["exited", 137], "nobody asked for its end");
    });

    it("4. DELETE ends a command, again and after its end it answers 204, and an exit stays an exit", async () => {
      const id = await started(box.id, "echo begun");
      for (let round = 0; round < 3; round += 1) {
        const { status, text } = await client.ask("DELETE", `/sandboxes/${box.id}/commands/${id}`);
        assert.deepEqual([status, text], [204, ""]);
      }
      const { phase, exited_at: exitedAt } = await client.settled(box.id, id);
      assert.equal(phase, "killed");
      assert.ok(exitedAt);
      assert.equal((await client.page(box.id, id, 0)).bytes, "begun\nready\n");
      const { commandId } = await client.run(box.id, sh("exit 3"));
      await client.kill(box.id, commandId);
      const { phase: after, exit_code: code } = await client.command(box.id, commandId);
      assert.deepEqual([after, code], ["exited", 3]);
    });

    it("4. logs by cursor: bytes count, stdout and stderr are one, and pages are monotone while it runs", async () => {
      const lines = Array.from({ length: 2000 }, (_, at) => `${at % 2 ? "ä€😀" : "plain"} ${at}\n`);
      const script = `i=0; while [ $i -lt 2000 ]; do if [ $((i % 2)) = 1 ]; then echo "ä€😀 $i" >&2; else echo "plain $i"; fi; i=$((i+1)); done`;
      const { output, commandId, exitCode } = await client.run(box.id, sh(script));
      assert.equal(exitCode, 0);
      // Two pipes have no common order, the lines of each have one.
      assert.deepEqual(output.split("\n").toSorted(), lines.join("").split("\n").toSorted());
      const whole = Buffer.byteLength(lines.join(""));
      assert.equal((await client.page(box.id, commandId, whole)).next_cursor, whole);
      for (const cursor of ["-1", "x", "1.5", "1e3"])
        await isRefused(
          client.call("GET", `/sandboxes/${box.id}/commands/${commandId}/logs?cursor=${cursor}`),
          400,
          cursor,
        );
    });

    it("4. a page never splits a character, wherever its limit falls", async () => {
      const text = "aä€😀".repeat(20);
      const { commandId } = await client.run(box.id, ["printf", text]);
      for (const limit of [4, 5, 6, 7, 11]) {
        let got = "";
        for (let cursor = 0; ;) {
          const page = await client.page(box.id, commandId, cursor, `&limit=${limit}`);
          assert.ok(!page.bytes.includes("\ufffd"), `${limit}: ${page.bytes}`);
          assert.equal(page.next_cursor - cursor, Buffer.byteLength(page.bytes), "the cursor counts bytes");
          if (page.next_cursor === cursor) break;
          got += page.bytes;
          cursor = page.next_cursor;
        }
        assert.equal(got, text);
      }
      // Half a character that the command is still writing waits for its other half.
      const { command_id: id } = await client.launch(
        box.id,
        sh(`printf 'x\\342\\202'; sleep 1; printf '\\254y'`),
      );
      const pages = new Set<string>();
      while ((await client.command(box.id, id)).phase === "running") {
        pages.add((await client.page(box.id, id, 0)).bytes);
        // A fast host comes to the rate limit of its key without it.
        await pause(20);
      }
      assert.ok(
        [...pages].every((page) => "x€y".startsWith(page)),
        JSON.stringify([...pages]),
      );
      assert.equal(await client.tail(box.id, id), "x€y");
    });

    it("4. bytes that are no UTF-8 become U+FFFD, the cursor counts them raw, and base64 has them", async () => {
      const { commandId } = await client.run(box.id, sh(`printf 'a\\377b\\300\\200c\\342\\202'`));
      const raw = Buffer.from([0x61, 0xff, 0x62, 0xc0, 0x80, 0x63, 0xe2, 0x82]);
      const page = await client.page(box.id, commandId, 0);
      assert.equal(page.next_cursor, raw.length);
      assert.equal(page.bytes, raw.toString());
      const encoded = await client.page(box.id, commandId, 0, "&encoding=base64");
      assert.equal(encoded.bytes, raw.toString("base64"));
      assert.equal(encoded.next_cursor, raw.length);
      assert.equal(
        (await client.page(box.id, commandId, 1, "&encoding=base64")).bytes,
        raw.subarray(1).toString("base64"),
      );
      await isRefused(client.page(box.id, commandId, 0, "&encoding=rot13"), 400, "an encoding that is none");
    });

    it("4. past the retention the cursor jumps, and truncated_before is the first byte kept", async () => {
      const own = await client.create({ image: "base" });
      const line = "0123456789abcde\n";
      const total = 4 * LOG_LIMIT;
      const { command_id: id } = await client.launch(own.id, sh(`yes 0123456789abcde | head -c ${total}`));
      await client.settled(own.id, id);
      const first = await client.page(own.id, id, 0);
      const { truncated_before: kept = 0 } = first;
      assert.ok(kept > 0 && kept < total, String(kept));
      assert.equal(first.next_cursor, kept + Buffer.byteLength(first.bytes));
      const rest = await client.tail(own.id, id, { cursor: kept });
      assert.equal(rest, line.repeat(total / line.length).slice(kept));
      assert.equal((await client.page(own.id, id, total - 16)).truncated_before, undefined);
      const followed = await client.followToEnd(own.id, id);
      assert.equal(followed.output, rest);
      await client.remove(own.id);
    });

    it("4. a client that stops at the first page that does not say running has the whole log", async () => {
      const total = 900_000;
      const { command_id: id } = await client.launch(box.id, sh(`yes 0123456789abcde | head -c ${total}`));
      await client.settled(box.id, id);
      let got = 0;
      for (let page = await client.page(box.id, id, 0); ; page = await client.page(box.id, id, got)) {
        got = page.next_cursor;
        if (page.phase !== "running") break;
      }
      assert.equal(got, total);
    });

    it("4. follow sends log and end events with ids, and a comment while nothing happens", async () => {
      const { command_id: id } = await client.launch(box.id, sh("echo one; sleep 1; echo zwölf >&2; exit 5"));
      const events = await Array.fromAsync(client.follow(box.id, id));
      const logs = events.filter(({ event }) => event === "log");
      let cursor = 0;
      for (const { id: at, data = "" } of logs) {
        const { bytes, next_cursor: next } = JSON.parse(data) as {
          readonly bytes: string;
          readonly next_cursor: number;
        };
        cursor += Buffer.byteLength(bytes);
        assert.deepEqual([next, at], [cursor, String(cursor)]);
      }
      assert.equal(
        logs.map(({ data = "" }) => (JSON.parse(data) as { readonly bytes: string }).bytes).join(""),
        "one\nzwölf\n",
      );
      assert.ok(
        events.some(({ comment, event }) => comment !== undefined && event === undefined),
        "a heartbeat",
      );
      const { event, data = "" } = events.at(-1) ?? {};
      assert.deepEqual([event, JSON.parse(data)], ["end", { phase: "exited", exit_code: 5 }]);
      // Long after the end the same is there, at once.
      assert.equal((await client.followToEnd(box.id, id)).output, "one\nzwölf\n");
      await isRefused(Array.fromAsync(client.follow(box.id, "made-up")), 404, "a command that is none");
      const { headers } = await client.ask(
        "GET",
        `/sandboxes/${box.id}/commands/${id}/logs?follow=true`,
        undefined,
        { accept: "text/event-stream" },
      );
      assert.match(headers["content-type"] ?? "", /^text\/event-stream/);
    });

    it("4. follow goes on from Last-Event-ID or from a cursor, without loss or repetition", async () => {
      const { command_id: id } = await client.launch(
        box.id,
        sh("i=0; while [ $i -lt 300 ]; do echo ä$i; i=$((i+1)); sleep 0.002; done"),
      );
      const whole = Array.from({ length: 300 }, (_, at) => `ä${at}\n`).join("");
      const [steady, dropping, polling] = await Promise.all([
        client.followToEnd(box.id, id),
        client.followToEnd(box.id, id, { dropAfter: 3 }),
        client.tail(box.id, id),
      ]);
      assert.equal(steady.output, whole);
      assert.equal(dropping.output, whole);
      assert.ok(dropping.connections > 1);
      assert.equal(polling, whole);
      const cursor = Buffer.byteLength(whole.slice(0, 100));
      // A browser that connects again sends the first request's cursor, too.
      for (const ask of [
        { query: `?follow=true&cursor=${cursor}` },
        { query: "?follow=true&cursor=0", lastEventId: String(cursor) },
      ]) {
        const events = await Array.fromAsync(client.follow(box.id, id, ask));
        const logs = events.filter(({ event }) => event === "log");
        const texts = logs.map(({ data = "" }) => (JSON.parse(data) as { readonly bytes: string }).bytes);
        assert.equal(texts.join(""), whole.slice(100));
      }
      await isRefused(
        Array.fromAsync(client.follow(box.id, id, { lastEventId: "yesterday" })),
        400,
        "an id that is none",
      );
    });

    it("4. a sandbox that is deleted loses its commands, and their logs stay readable to the last byte", async () => {
      const own = await client.create({ image: "base", name: `lost-${backend}` });
      const done = await client.run(own.id, sh("echo finished; exit 4"));
      const id = await started(own.id, "seq 1 1000");
      const following = client.followToEnd(own.id, id);
      await client.remove(own.id);
      const log = `${Array.from({ length: 1000 }, (_, at) => at + 1).join("\n")}\nready\n`;
      assert.deepEqual(await following, {
        output: log,
        end: { phase: "lost", exit_code: null },
        connections: 1,
      });
      const { phase, exit_code: code } = await client.settled(own.id, id);
      assert.deepEqual([phase, code], ["lost", null]);
      assert.equal(await client.tail(own.id, id), log);
      const { phase: after, exit_code: exit } = await client.command(own.id, done.commandId);
      assert.deepEqual([after, exit], ["exited", 4]);
      assert.equal(await client.tail(own.id, done.commandId), "finished\n");
      assert.equal((await client.ask("DELETE", `/sandboxes/${own.id}/commands/${id}`)).status, 204);
      assert.equal((await client.command(own.id, id)).phase, "lost");
    });

    // A sandbox of local-process has no first process that could die.
    if (backend === "linux-namespaces")
      it("4. a sandbox whose backend loses it loses its commands as well", async () => {
        const own = await client.create({ image: "base" });
        const id = await started(own.id, "echo last words");
        const [pid] = (await readFile(join(directory, "sandboxes", own.id, "init"), "utf8")).split(" ");
        process.kill(Number(pid), "SIGKILL");
        const { phase, exit_code: code } = await client.settled(own.id, id);
        assert.deepEqual([phase, code], ["lost", null]);
        assert.equal(await client.tail(own.id, id), "last words\nready\n");
      });

    it("7. one table: each surface lists, tails and kills the commands of the others, and they count once", async () => {
      const { sandboxId } = sdk();
      const own = keyHolder();
      const { accessToken } = server().sandboxes.get(sandboxId).record;
      const envd = envdClient({ url: server().url, sandboxId, token: accessToken });
      const ops = server().urls["ops"] ?? "";
      const count = async () => (await Scrape.of(ops)).sum("coppice_commands_started_total");
      const atFirst = await count();

      const v1 = await own.launch(sandboxId, sh("echo from-v1; exec sleep 301"), { detach: true });
      const rpc = await openProcess(envd, shellRequest("echo from-rpc; exec sleep 302"));
      const legacy = envd.send("POST", "/commands", {
        body: JSON.stringify({ cmd: "echo from-legacy; exec sleep 303" }),
      });
      const js = await sdk().commands.run("echo from-sdk; exec sleep 304", { background: true });
      const told = js.wait().catch((error: unknown) => error);

      const marks = ["v1", "rpc", "legacy", "sdk"] as const;
      const idOf = await eventually("each is listed with its log", async () => {
        const listed = await own.call<V1Command[]>("GET", `/sandboxes/${sandboxId}/commands`);
        const running = listed.filter(({ phase }) => phase === "running");
        const found = await Promise.all(
          running.map(async ({ command_id: id }) => [(await own.page(sandboxId, id, 0)).bytes, id] as const),
        );
        const byLog = new Map(found);
        const ids = Object.fromEntries(marks.map((mark) => [mark, byLog.get(`from-${mark}\n`) ?? ""]));
        return Object.values(ids).includes("")
          ? undefined
          : (ids as Readonly<Record<(typeof marks)[number], string>>);
      });
      assert.equal(idOf.v1, v1.command_id);
      assert.equal((await count()) - atFirst, 4);

      const pids = new Map<string, number>();
      for (const { pid, cmd, args } of await sdk().commands.list())
        for (const [seconds] of `${cmd} ${args.join(" ")}`.matchAll(/sleep 30[1-4]/g)) pids.set(seconds, pid);
      assert.equal(pids.size, 4, "the SDK lists them");
      const { body } = await envd.call("process.Process/List", {});
      assert.equal(
        [...JSON.stringify(body).matchAll(/sleep 30[1-4]/g)].length,
        4,
        "process.Process lists them",
      );
      const listed = await envd.send("GET", "/commands");
      assert.equal(
        [...listed.text.matchAll(/sleep 30[1-4]/g)].length,
        4,
        `/commands lists them: ${listed.text}`,
      );

      const pid = pids.get("sleep 301") ?? 0;
      const replayed = await envd.send("GET", `/commands/${pid}/logs`);
      assert.match(replayed.text, /from-v1/, "tailed by /commands");
      const printed = startCoppice(["logs", sandboxId], {
        E2B_API_URL: server().url,
        E2B_API_KEY: API_KEY,
      });
      const { stdout } = await printed.end;
      for (const mark of marks) assert.match(stdout.toString(), new RegExp(`^from-${mark}$`, "m"));

      // The SDK ends the one of /v1, and /v1 ends the others.
      assert.equal(await sdk().commands.kill(pid), true);
      const { phase } = await own.settled(sandboxId, v1.command_id);
      assert.equal(phase, "killed");
      for (const mark of ["rpc", "legacy", "sdk"] as const) {
        await own.kill(sandboxId, idOf[mark]);
        assert.equal((await own.settled(sandboxId, idOf[mark])).phase, "killed");
      }
      assert.deepEqual((await rpc.rest()).names.at(-1), "end");
      assert.match((await legacy).text, /"exit_code":-1/);
      assert.match(String(await told), /signal: killed/);
      assert.equal((await count()) - atFirst, 4);
    });

    it("7. a command of /v1 is followed by Connect of process.Process", async () => {
      const { sandboxId } = sdk();
      const own = keyHolder();
      const { accessToken } = server().sandboxes.get(sandboxId).record;
      const envd = envdClient({ url: server().url, sandboxId, token: accessToken });
      const script = "while ! [ -e go ]; do sleep 0.02; done; echo went; exit 6";
      const { command_id: id } = await own.launch(sandboxId, sh(script));
      const { pid = 0 } =
        (await sdk().commands.list()).find(({ args }) => args.join(" ").includes("went")) ?? {};
      const connected = await openProcess(envd, { process: { pid } }, { method: "Connect" });
      await own.run(sandboxId, ["touch", "go"]);
      const { stdout, end } = await connected.rest();
      assert.equal(stdout, "went\n");
      assert.equal((end as { readonly exitCode?: number }).exitCode, 6);
      assert.equal((await own.settled(sandboxId, id)).exit_code, 6);
    });
  },
  {
    server: { sandboxes: { maximumLimits: { cpuCount: 2, memoryMiB: 4096, diskMiB: 8192 } } },
    settings: {
      "access": { apiKeys: [API_KEY], jwt: provider.settings },
      "commands": { log: { maxPerSandbox: "1MiB" } },
      "commands-v1": { heartbeat: "200ms" },
      "linux-namespaces": { directory },
    },
  },
);
