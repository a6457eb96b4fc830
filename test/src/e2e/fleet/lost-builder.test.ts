import assert from "node:assert/strict";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, describe, it } from "node:test";
import { eventually, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";
import { Sandbox, Template } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { SharingServers } from "../../harness/server/sharing-servers.js";

const skip = reasonWithoutEtcd() || missingForNamespaces() || WITHOUT_SMALL_ROOT;

describe("the templates of a server that is killed, and comes back", { skip, timeout: 280_000 }, () => {
  let servers: SharingServers;

  const at = (index: number): void => pointSdkAt(servers.url(index));
  const fileOf = (index: number): string => servers.configFile(index);
  const call = async (index: number, path: string, method = "GET") =>
    fetch(servers.url(index) + path, { method, headers: { "x-api-key": API_KEY } });
  const build = (version: string, name: string) =>
    Template.build(Template().fromImage("small").runCmd(`echo ${version} > version`), name);
  const versionAt = async (index: number, name: string): Promise<string> => {
    const other = `node${1 - index}`;
    await startCoppice(["fleet", "cordon", fileOf(index), other]).end;
    at(index);
    try {
      const sandbox = await Sandbox.create(name);
      const version = (await sandbox.files.read("version")).trim();
      await sandbox.kill();
      return version;
    } finally {
      await startCoppice(["fleet", "uncordon", fileOf(index), other]).end;
    }
  };
  const entryOf = async (id: string): Promise<string> => (await servers.values(`templates/${id}`))[0] ?? "";
  const listed = async (index: number): Promise<readonly string[]> => {
    const all = (await (await call(index, "/templates")).json()) as readonly { templateID: string }[];
    return all.map(({ templateID }) => templateID).filter((id) => /^[a-z0-9]{20}$/.test(id));
  };

  const copiesAt = (index: number): unknown => {
    using store = new DatabaseSync(join(servers.dataDirectory(index), "templates/templates.sqlite"));
    return store.prepare("SELECT count(*) AS count FROM copy").get()?.["count"];
  };

  before(async () => {
    servers = await SharingServers.start();
  });
  after(() => servers[Symbol.asyncDispose]());

  it("are the other one's, which changes and deletes them; the killed one has copies when it is back", async () => {
    at(0);
    const kept = await build("one", "kept");
    const untouched = await build("same", "untouched");
    const deleted = await build("deleted", "deleted");
    const all = [kept, untouched, deleted].map(({ templateId }) => templateId);
    for (const id of all) await eventually("its digest", async () => (await entryOf(id)).includes("sha256:"));
    await servers.kill(0);
    for (const id of all)
      await eventually(
        "the other keeps it",
        async () => (await entryOf(id)).includes('"node":"node1"'),
        60_000,
      );
    assert.deepEqual((await listed(1)).toSorted(), all.toSorted());
    at(1);
    await build("two", "kept");
    assert.equal((await call(1, "/templates/deleted", "DELETE")).status, 204);

    await servers.restart(0);
    await eventually("it has given them up", async () => {
      const { stdout } = await startCoppice(["template", "list", fileOf(0), "--json"]).end;
      return !all.some((id) => stdout.toString().includes(id));
    });
    for (const index of [0, 1]) {
      assert.deepEqual((await listed(index)).toSorted(), [kept.templateId, untouched.templateId].toSorted());
      assert.equal(await versionAt(index, "kept"), "two");
      assert.equal(await versionAt(index, "untouched"), "same");
      assert.equal((await call(index, "/templates/deleted")).status, 404);
      assert.equal((await call(index, "/templates/kept/tags")).status, 200);
    }
  });

  it("that a verb has removed are removed for the other one, too, and its copies with them", async () => {
    const { stdout } = await startCoppice(["template", "remove", fileOf(1), "untouched"]).end;
    assert.match(stdout.toString(), /is removed/);
    await eventually(
      "the other one knows",
      async () => (await call(0, "/templates/untouched")).status === 404,
    );
    // Of the template that is left, the server that keeps it has no copy.
    for (const [index, count] of [1, 0].entries())
      await eventually("the copies that are needed", () => copiesAt(index) === count);
    await servers.stop();
    for (const index of [0, 1]) {
      const checked = await startCoppice(["template", "fsck", fileOf(index)]).end;
      assert.equal(checked.stdout.toString(), "0 lost, 0 not needed, 0 unknown\n", checked.stderr);
    }
  });
});
