import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import { IDS_OF_SANDBOX, IdRanges } from "./given-numbers.js";
import { type SandboxFacts, readFacts, readInit, sandboxPaths } from "../launcher/sandbox-record.js";
import { type TestBackend, openTestBackend, reasonToSkip } from "../testing/test-backend.js";
import { makeSandbox, runScript } from "../testing/test-sandbox.js";

const FIRST = 1_500_000_256;

describe("ranges of ids", () => {
  it("are given to one sandbox at a time, until none is left", () => {
    const ids = new IdRanges({ first: 1_000_000, count: 2 * IDS_OF_SANDBOX + 1 }, 7);
    assert.deepEqual([ids.take(), ids.take()], [1_065_536, 1_000_000]);
    assert.throws(() => ids.take(), /linux-namespaces\.ids are in use/);
    ids.release(1_065_536);
    assert.equal(ids.take(), 1_065_536);
  });
});

describe("a sandbox with separate ids", { skip: reasonToSkipRanges(), concurrency: 1 }, () => {
  let opened: TestBackend;
  let sandbox: Sandbox;
  let other: Sandbox;

  before(async () => {
    opened = await openTestBackend({ ids: { first: FIRST, count: 4 * IDS_OF_SANDBOX } });
    sandbox = await makeSandbox(opened.backend);
    other = await makeSandbox(opened.backend);
  });
  after(async () => {
    await Promise.all([sandbox.destroy(), other.destroy()]);
    await opened[Symbol.asyncDispose]();
  });

  const pathsOf = ({ id }: Sandbox) => sandboxPaths(join(opened.directory, "sandboxes", id));
  const factsOf = async (of: Sandbox): Promise<SandboxFacts> =>
    (await readFacts(pathsOf(of))) ?? assert.fail("there is no record");

  it("has user ids that neither the host nor another sandbox uses", async () => {
    const firsts = [(await factsOf(sandbox)).firstId, (await factsOf(other)).firstId];
    assert.equal(new Set(firsts).size, 2);
    const { pid } = (await readInit(pathsOf(sandbox))) ?? {};
    assert.equal((await stat(`/proc/${pid}`)).uid, firsts[0]);
    assert.ok(firsts.every((first = 0) => first >= FIRST && first < FIRST + 4 * IDS_OF_SANDBOX));
  });

  it("has them also with a template of a single program of the host", async () => {
    await using withProgram = await openTestBackend({
      node: process.execPath,
      ids: { first: FIRST + 4 * IDS_OF_SANDBOX, count: IDS_OF_SANDBOX },
    });
    const one = await makeSandbox(withProgram.backend);
    const { output } = await runScript(one, "cat /proc/self/uid_map");
    assert.match(output, new RegExp(`^\\s*0\\s+${FIRST + 4 * IDS_OF_SANDBOX}\\s`));
    await one.destroy();
  });

  it("has files whose ids on disk are those that it sees", async () => {
    await runScript(sandbox, "touch /root/a && touch /root/b && chown 1000:27 /root/b", "root");
    const root = join(pathsOf(sandbox).layers, "root/upper/root");
    for (const [name, uid, gid] of [
      ["a", 0, 0],
      ["b", 1000, 27],
    ] as const) {
      const found = await stat(join(root, name));
      assert.deepEqual([found.uid, found.gid], [uid, gid]);
    }
    const { output } = await runScript(
      sandbox,
      "stat -c '%u %g' /root/a /root/b /usr/bin /dev /dev/shm",
      "root",
    );
    assert.equal(output, "0 0\n1000 27\n0 0\n0 0\n0 0\n");
  });

  it("lets only its root serve low ports", async () => {
    const serve = `python3 -c 'import socket; socket.socket().bind(("", 80)); print("serves")'`;
    assert.match((await runScript(sandbox, serve, "root")).output, /^serves$/m);
    assert.match((await runScript(sandbox, serve)).output, /PermissionError/);
  });

  it("releases them while it is stopped, and is adopted with them while it runs", async () => {
    const stopping = await makeSandbox(opened.backend);
    const { firstId } = await factsOf(stopping);
    await stopping.stopping?.stop();
    assert.equal((await factsOf(stopping)).firstId, undefined);
    const next = await makeSandbox(opened.backend);
    assert.equal((await factsOf(next)).firstId, firstId);
    await opened.backend.close();
    const recovered = await opened.backend.recover();
    const again = recovered.find(({ id }) => id === next.id) ?? assert.fail("it was not adopted");
    const late = await makeSandbox(opened.backend);
    const firsts = await Promise.all(
      [again, late, sandbox, other].map(async (each) => (await factsOf(each)).firstId),
    );
    assert.equal(new Set(firsts).size, 4);
    await Promise.all(recovered.map((each) => each.destroy()));
    await late.destroy();
    sandbox = await makeSandbox(opened.backend);
    other = await makeSandbox(opened.backend);
  });

  it("has those of the host where the file system does not support id mapping", async () => {
    // An overlay does not support it.
    const [upper, work, merged] = ["upper", "work", "merged"].map((name) => join(opened.directory, name));
    for (const path of [upper, work, merged]) await mkdir(path ?? "");
    const options = `lowerdir=${(await factsOf(sandbox)).root?.lowers[0]},upperdir=${upper},workdir=${work}`;
    execFileSync("mount", ["-t", "overlay", "overlay", "-o", options, merged ?? ""]);
    const unmapped = await openTestBackend({
      templates: { odd: { kind: "directory", path: merged ?? "" } },
    });
    try {
      const made = await makeSandbox(unmapped.backend, { template: "odd" });
      const facts = await readFacts(sandboxPaths(join(unmapped.directory, "sandboxes", made.id)));
      assert.ok(facts !== undefined && facts.firstId === undefined);
      await made.destroy();
      assert.deepEqual(await unmapped.leaks(), []);
    } finally {
      await unmapped[Symbol.asyncDispose]();
      execFileSync("umount", [merged ?? ""]);
    }
  });
});

function reasonToSkipRanges(): string | false {
  return (
    reasonToSkip() ?? (process.getuid?.() === 0 ? false : "only a server that is root gives ranges of ids")
  );
}
