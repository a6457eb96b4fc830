import assert from "node:assert/strict";
import { fstatSync, openSync } from "node:fs";
import { mkdtemp, open, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { SandboxError } from "@coppice/core/backend";
import { DirectFile, takeTurn } from "./direct-file.js";

it("a descriptor is not closed before the reads that wait for their turn: its number could be another file's", async (t) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-direct-"));
  t.after(() => rm(directory, { recursive: true }));
  await writeFile(join(directory, "own"), "own");
  await writeFile(join(directory, "other"), "another tenant's");
  const owner = {};
  const endTurn = await takeTurn(owner);
  assert.ok(endTurn);
  const descriptor = openSync(join(directory, "own"), "r");
  const file = new DirectFile({
    descriptor,
    owner,
    errorOf: (cause) => new SandboxError("agent_unavailable", cause.message, { cause }),
    elsewhere: async () => assert.fail("it read elsewhere"),
  });
  const target = Buffer.alloc(3);
  const reading = file.read(target, 0);
  const closed = file.close(new SandboxError("agent_unavailable", "the agent is gone"));
  // A close would be done by now: Node's pool takes one after another.
  for (let round = 0; round < 8; round += 1) await stat(directory);
  await using other = await open(join(directory, "other"));
  assert.notEqual(other.fd, descriptor);
  endTurn();
  assert.equal(await reading, 3);
  assert.equal(target.toString(), "own");
  await assert.rejects(file.read(target, 0), /the agent is gone/);
  await closed;
  assert.throws(() => fstatSync(descriptor), /EBADF/);
});
