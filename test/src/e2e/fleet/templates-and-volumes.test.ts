import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { Sandbox, Template, Volume } from "e2b";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";

const CONFIGURED = ["base", "code-interpreter-v1"];
const skip = reasonWithoutEtcd() || missingForNamespaces() || WITHOUT_SMALL_ROOT;

describe("templates, snapshots and volumes of a fleet", { skip, timeout: 280_000 }, () => {
  let etcd: Cluster;
  let fleet: Fleet;
  let hub: ImageHub;
  let directory: string;
  /** A key of another tenant for each server. */
  const strangers: string[] = [];
  const urlOf = (index: number): string => fleet.servers[index]?.url ?? "";
  const at = (index: number): void => {
    pointSdkAt(urlOf(index));
    process.env["E2B_VOLUME_API_URL"] = fleet.servers[index]?.urls["volumes"] ?? "";
  };
  const call = async (index: number, path: string, method = "GET"): Promise<Response> =>
    fetch(urlOf(index) + path, { method, headers: { "x-api-key": API_KEY } });
  const listed = async (index: number, path: string): Promise<readonly Record<string, unknown>[]> =>
    (await (await call(index, path)).json()) as readonly Record<string, unknown>[];
  /** All pages of a list, one entry each. */
  const paged = async (path: string): Promise<readonly Record<string, unknown>[]> => {
    const all: Record<string, unknown>[] = [];
    for (let token = "", page = 0; page === 0 || token !== ""; page += 1) {
      // Each page from another server.
      const answer = await call(page % 2, `${path}?limit=1&nextToken=${token}`);
      assert.equal(answer.status, 200);
      all.push(...((await answer.json()) as readonly Record<string, unknown>[]));
      token = answer.headers.get("x-next-token") ?? "";
    }
    return all;
  };

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    await mkdir(join(directory, "context"));
    await writeFile(join(directory, "context/file.txt"), "copied");
    hub = await openImageHub(["library/ubuntu:22.04"]);
    etcd = await startEtcd();
    fleet = await startFleet({
      count: 2,
      store: { etcd: { endpoints: etcd.endpoints } },
      backend: "linux-namespaces",
      dataDir: directory,
      listeners: { volumes: {} },
      settings: { templates: { registries: hub.registries } },
    });
    for (const index of [0, 1]) {
      const config = join(directory, `keys${index}.yaml`);
      const dataDir = join(directory, `node${index}`);
      const listeners = { api: { port: 0 } };
      await writeFile(
        config,
        JSON.stringify({ dataDir, listeners, plugins: { "access": {}, "local-process": {} } }),
      );
      const words = ["keys", "create", config, "--tenant", "stranger", "--scopes", "admin"];
      strangers.push((await startCoppice(words).end).stdout.toString().trim());
    }
  });
  after(async () => {
    delete process.env["E2B_VOLUME_API_URL"];
    await fleet[Symbol.asyncDispose]();
    await etcd[Symbol.asyncDispose]();
    await hub[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });

  it("a volume has its contents at every server, its name once, and is listed and removed by each", async () => {
    at(0);
    const volume = await Volume.create("shared");
    at(1);
    const { volumeId } = await Volume.create("of-the-other");
    await assert.rejects(Volume.create("shared"), /exists/);
    for (const index of [0, 1]) {
      at(index);
      const names = (await Volume.list()).map(({ name }) => name);
      assert.deepEqual(names, ["of-the-other", "shared"]);
      const connected = await Volume.connect(volume.volumeId);
      await connected.writeFile("/text", `from ${index}`);
      assert.equal(await connected.readFile("/text"), `from ${index}`);
    }
    const contents = `${fleet.servers[1]?.urls["volumes"]}/volumecontent/${volume.volumeId}/path?path=/text`;
    const bearer = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });
    assert.equal((await fetch(contents, bearer(volume.token))).status, 200);
    const refusals = [
      await fetch(contents, bearer("wrong")),
      await fetch(contents.replace(volume.volumeId, "nothing"), bearer("wrong")),
    ];
    const [wrong, unknown] = await Promise.all(refusals.map(async (one) => [one.status, await one.json()]));
    assert.deepEqual(wrong, unknown);
    assert.equal(wrong?.[0], 401);
    at(1);
    const sandbox = await Sandbox.create({ volumeMounts: { "/data": "shared" } });
    assert.equal(await sandbox.files.read("/data/text"), "from 1");
    await sandbox.kill();
    at(0);
    assert.equal(await Volume.destroy(volumeId), true);
    assert.equal(await Volume.destroy(volumeId), false);
  });

  it("a snapshot is listed in order by every server, makes sandboxes at each, and is deleted by each", async () => {
    const ids: string[] = [];
    for (const index of [0, 1, 0]) {
      at(index);
      const sandbox = await Sandbox.create();
      await sandbox.files.write("index", String(index));
      const { snapshotId } = await sandbox.createSnapshot(ids.length === 1 ? { name: "named" } : {});
      ids.unshift(snapshotId);
      await sandbox.kill();
    }
    const pages = await paged("/snapshots");
    assert.deepEqual(
      pages.map(({ snapshotID }) => snapshotID),
      ids,
    );
    assert.deepEqual(Object.keys(pages[0] ?? {}).toSorted(), ["memory", "names", "snapshotID"]);
    for (const index of [0, 1]) {
      at(index);
      const sandbox = await Sandbox.create("named");
      assert.equal(await sandbox.files.read("index"), "1");
      await sandbox.kill();
      assert.equal((await call(index, "/templates/aliases/named")).status, 200);
    }
    for (const id of ids) {
      at(0);
      assert.equal(await Sandbox.deleteSnapshot(id), true);
      at(1);
      assert.equal(await Sandbox.deleteSnapshot(id), false);
    }
  });

  it("a template is built through a server that does not have it, and listed, tagged and deleted through each", async () => {
    const template = (line: string) =>
      Template({ fileContextPath: join(directory, "context") })
        .fromImage("ubuntu:22.04")
        .copy("file.txt", "file.txt")
        .runCmd(line);
    at(0);
    const first = await Template.build(template("echo one > version"), "built");
    at(1);
    // Its upload, its status and its logs, too.
    const second = await Template.build(template("echo two > version"), "built:second");
    assert.equal(second.templateId, first.templateId);
    await Template.assignTags("built:second", ["tagged"]);
    for (const index of [0, 1]) {
      at(index);
      assert.equal(await Template.aliasExists("built"), true);
      assert.equal(await Template.aliasExists("nothing"), false);
      const sandbox = await Sandbox.create("built:tagged");
      assert.equal((await sandbox.files.read("version")).trim(), "two");
      await sandbox.kill();
      const templates = (await listed(index, "/templates")).map(({ templateID }) => String(templateID));
      assert.deepEqual(templates.toSorted(), [...CONFIGURED, first.templateId].toSorted());
      assert.equal((await call(index, "/templates/built/tags")).status, 200);
      assert.equal((await call(index, `/templates/${first.templateId}`)).status, 200);
    }
    const ids = (await paged("/v2/templates")).map(({ templateID }) => templateID);
    assert.deepEqual(ids, [first.templateId, ...CONFIGURED]);
    // For others it does not exist, at any server.
    for (const index of [0, 1]) {
      const headers = { "x-api-key": strangers[index] ?? "" };
      for (const path of ["", "/tags", `/builds/${second.buildId}/status`]) {
        const [theirs, unknown] = await Promise.all(
          [first.templateId, "a".repeat(first.templateId.length)].map(async (id) => {
            const answer = await fetch(`${urlOf(index)}/templates/${id}${path}`, { headers });
            return `${answer.status} ${(await answer.text()).replaceAll(id, "<id>")}`;
          }),
        );
        assert.match(theirs ?? "", /^404/);
        assert.equal(theirs, unknown);
      }
      const own = await fetch(`${urlOf(index)}/templates`, { headers });
      assert.equal(
        ((await own.json()) as readonly unknown[]).length,
        CONFIGURED.length,
        "the configured ones alone",
      );
    }
    assert.equal((await call(1, "/templates/built", "DELETE")).status, 204);
    for (const index of [0, 1]) assert.equal((await call(index, "/templates/built")).status, 404);
  });

  it("volumes and templates are made elsewhere by a server that is cordoned: their sandboxes could be nowhere", async () => {
    await fleet.coppice("cordon", "node0");
    at(0);
    await eventually("the cordon is known", async () => {
      const made = await Promise.all(Array.from({ length: 5 }, () => Sandbox.create()));
      const areElsewhere = fleet.servers[0]?.sandboxes.list().length === 0;
      for (const sandbox of made) await sandbox.kill();
      return areElsewhere;
    });
    await Volume.create("late");
    await Template.build(Template().fromImage("ubuntu:22.04").runCmd("echo late > version"), "late");
    const sandbox = await Sandbox.create("late", { volumeMounts: { "/data": "late" } });
    assert.equal((await sandbox.files.read("version")).trim(), "late");
    await sandbox.kill();
    await fleet.coppice("uncordon", "node0");
  });
});
