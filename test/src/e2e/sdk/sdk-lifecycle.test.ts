import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { AuthenticationError, Sandbox, SandboxNotFoundError, TimeoutError } from "e2b";
import { runningProcesses } from "../../harness/host/running-processes.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

const KILLED_IN_FLIGHT =
  /The sandbox was killed or reached its end of life while the request was in flight\./;
const UNKNOWN_ID = "iabcdefghij0123456789";

onEachBackend(
  "the life of a sandbox through the e2b SDK",
  ({ backend, sandbox: shared }) => {
    it("is what it was created as", async () => {
      const metadata = { "user id": "a&b=c", "plain": "x" };
      const sandbox = await Sandbox.create({ metadata, envs: { GLOBAL: "for all" }, timeoutMs: 120_000 });
      const info = await sandbox.getInfo();
      assert.equal(info.sandboxId, sandbox.sandboxId);
      assert.match(info.sandboxId, /^[a-z0-9]+$/);
      assert.equal(info.templateId, "base");
      assert.equal(info.state, "running");
      assert.deepEqual(info.metadata, metadata);
      // The host's network, or none: `egress` is none unless it is configured.
      assert.equal(info.allowInternetAccess, backend === "local-process");
      assert.equal(Math.round((info.endAt.getTime() - info.startedAt.getTime()) / 1000), 120);
      assert.equal(await sandbox.isRunning(), true);
      const { stdout } = await sandbox.commands.run('echo "$GLOBAL $E2B_SANDBOX $E2B_SANDBOX_ID"');
      assert.equal(stdout, `for all true ${sandbox.sandboxId}\n`);
      await sandbox.kill();
    });

    it("is listed page by page, and by its metadata", async () => {
      const [one, two] = await Promise.all([
        Sandbox.create({ metadata: { "k &": "v=" } }),
        Sandbox.create({ metadata: { other: "1" } }),
      ]);
      const pages = Sandbox.list({ limit: 1 });
      const listed: string[] = [];
      while (pages.hasNext) listed.push(...(await pages.nextItems()).map(({ sandboxId }) => sandboxId));
      const here = [shared(), one, two].map(({ sandboxId }) => sandboxId);
      assert.deepEqual(listed.toSorted(), here.toSorted());
      const found = await Sandbox.list({ query: { metadata: { "k &": "v=" } } }).nextItems();
      assert.deepEqual(
        found.map(({ sandboxId }) => sandboxId),
        [one.sandboxId],
      );
      await Promise.all([one.kill(), two.kill()]);
      const left = await Sandbox.list().nextItems();
      assert.deepEqual(
        left.map(({ sandboxId }) => sandboxId),
        [shared().sandboxId],
      );
    });

    it("is found again by its id", async () => {
      const sandbox = await Sandbox.create();
      await sandbox.files.write("kept.txt", "kept");
      const again = await Sandbox.connect(sandbox.sandboxId);
      assert.equal(await again.files.read("kept.txt"), "kept");
      await sandbox.kill();
      await assert.rejects(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError);
    });

    it("ends when its time is up, and its time can be changed", async () => {
      const sandbox = await Sandbox.create({ timeoutMs: 60_000 });
      await sandbox.setTimeout(300_000);
      const { endAt } = await sandbox.getInfo();
      assert.ok(Math.abs(endAt.getTime() - Date.now() - 300_000) < 5_000, endAt.toISOString());
      await sandbox.setTimeout(1_000);
      assert.equal(await sandbox.isRunning(), true);
      await eventually("the end", async () => !(await sandbox.isRunning()));
      await assert.rejects(sandbox.getInfo(), SandboxNotFoundError);
    });

    it("is killed once", async () => {
      const sandbox = await Sandbox.create();
      assert.equal(await sandbox.kill(), true);
      assert.equal(await sandbox.kill(), false);
      assert.equal(await Sandbox.kill(sandbox.sandboxId), false);
      assert.equal(await sandbox.isRunning(), false);
      await assert.rejects(sandbox.setTimeout(1_000), SandboxNotFoundError);
      await assert.rejects(sandbox.commands.run("true"), SandboxNotFoundError);
      await assert.rejects(sandbox.files.read("x"), TimeoutError);
    });

    it("tells a running command that the sandbox was killed, and ends its processes", async () => {
      const sandbox = await Sandbox.create();
      // Found on this host by their unique arguments: pids on the host may differ from those inside.
      const seconds = `300.${randomInt(2 ** 32)}`;
      const handle = await sandbox.commands.run(`setsid sleep ${seconds} & exec sleep ${seconds}`, {
        background: true,
      });
      const sleepers = () => runningProcesses(seconds);
      await eventually("both processes", async () => (await sleepers()).length >= 2);
      const waiting = assert.rejects(handle.wait(), (error) => {
        assert.ok(error instanceof TimeoutError, String(error));
        assert.match(error.message, KILLED_IN_FLIGHT);
        return true;
      });
      await sandbox.kill();
      await waiting;
      await eventually("the end of both processes", async () => (await sleepers()).length === 0);
    });

    it("does not answer for sandboxes that never were", async () => {
      assert.equal(await Sandbox.kill(UNKNOWN_ID), false);
      await assert.rejects(Sandbox.getInfo(UNKNOWN_ID), SandboxNotFoundError);
      await assert.rejects(Sandbox.create("no-such-template"), /template 'no-such-template' not found/);
    });

    it("does not answer strangers", async () => {
      const stranger = { apiKey: `e2b_${"0".repeat(40)}` };
      await assert.rejects(Sandbox.create(stranger), AuthenticationError);
      await assert.rejects(Sandbox.list(stranger).nextItems(), AuthenticationError);
    });

    it("hands out signed URLs that work for who has them", async () => {
      const sandbox = await Sandbox.create();
      const upload = await sandbox.uploadUrl("signed.txt");
      const form = new FormData();
      form.append("file", new Blob(["by signature"]), "signed.txt");
      assert.equal((await fetch(upload, { method: "POST", body: form })).status, 200);
      const download = await sandbox.downloadUrl("signed.txt");
      assert.equal(await (await fetch(download)).text(), "by signature");
      assert.equal((await fetch(download.replace("signed.txt", "other.txt"))).ok, false);
      await sandbox.kill();
      assert.equal((await fetch(download)).ok, false);
    });

    it("serves many at a time", async () => {
      const sandboxes = await Promise.all(Array.from({ length: 8 }, () => Sandbox.create()));
      const answers = await Promise.all(
        sandboxes.map(async (sandbox, index) => {
          await sandbox.files.write("mine.txt", String(index));
          return (await sandbox.commands.run("cat mine.txt")).stdout;
        }),
      );
      assert.deepEqual(answers, ["0", "1", "2", "3", "4", "5", "6", "7"]);
      assert.deepEqual(
        await Promise.all(sandboxes.map((sandbox) => sandbox.kill())),
        sandboxes.map(() => true),
      );
    });
  },
  { onJails: "main case" },
);
