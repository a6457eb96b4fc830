import assert from "node:assert/strict";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";
import { Sandbox, Template } from "e2b";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { SharingServers } from "../../harness/server/sharing-servers.js";

const skip = reasonWithoutEtcd() || missingForNamespaces() || WITHOUT_SMALL_ROOT;
/** Bytes that take a while on their way. */
const FILL = "head -c 67108864 /dev/urandom > filled";

describe("the transfer of a template whose server is killed", { skip, timeout: 280_000 }, () => {
  let servers: SharingServers;

  const fleet = (action: string, ...words: readonly string[]) =>
    startCoppice(["fleet", action, servers.configFile(0), ...words]).end;
  const transfers = async (index: number): Promise<number> =>
    (await readdir(join(servers.dataDirectory(index), "templates/pulls"))).length;
  const killInTransfer = async (index: number): Promise<void> => {
    await eventually("a transfer", async () => (await transfers(index)) > 0);
    await servers.kill(index);
    assert.ok((await transfers(index)) > 0, "it was too late");
    await servers.restart(index);
  };

  before(async () => {
    // On a busy machine a start takes longer than a short lease, and the server would have lost what is not pushed yet.
    servers = await SharingServers.start({ lease: "60s" });
  });
  after(() => servers[Symbol.asyncDispose]());

  it("is made again, to the registry and from it, and nothing is left of the first", async () => {
    pointSdkAt(servers.url(0));
    await Template.build(Template().fromImage("small").runCmd(FILL), "filled");
    await killInTransfer(0);
    await eventually(
      "its digest",
      async () => (await servers.values("templates/")).some((text) => text.includes("sha256:")),
      60_000,
    );

    await fleet("cordon", "node0");
    pointSdkAt(servers.url(1));
    const asked = assert.rejects(Sandbox.create("filled", { requestTimeoutMs: 60_000 }));
    await killInTransfer(1);
    await asked;
    pointSdkAt(servers.url(1));
    const sandbox = await Sandbox.create("filled");
    const { stdout } = await sandbox.commands.run("wc -c < filled");
    assert.equal(Number(stdout), 64 * 2 ** 20);
    assert.ok((await servers.values(`sandboxes/${sandbox.sandboxId}`))[0]?.includes('"node":"node1"'));
    await sandbox.kill();
    assert.equal(await transfers(1), 0);
    await servers.stop();
    const { stdout: report } = await startCoppice(["template", "fsck", servers.configFile(1)]).end;
    assert.match(report.toString(), /^0 lost, 0 not needed, 0 unknown$/m);
  });
});
