import assert from "node:assert/strict";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import {
  type DockerRegistry,
  eventually,
  openDockerRegistry,
  WITHOUT_SMALL_ROOT,
} from "@coppice/core/testing";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { Sandbox, Template } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";

const COUNT = 3;
const skip = reasonWithoutEtcd() || missingForNamespaces() || WITHOUT_SMALL_ROOT;

describe("templates that servers of a fleet share by a registry", { skip, timeout: 280_000 }, () => {
  let etcd: Cluster;
  let fleet: Fleet;
  let hub: ImageHub;
  let registry: DockerRegistry;
  let isDown = false;
  let directory: string;
  const strangers: string[] = [];
  /** How many servers run: the first one is stopped in the end. */
  let running = COUNT;

  const urlOf = (index: number): string => fleet.servers[index]?.url ?? "";
  const call = async (
    index: number,
    path: string,
    { method = "GET", key = API_KEY, body }: { method?: string; key?: string; body?: unknown } = {},
  ) =>
    fetch(urlOf(index) + path, {
      method,
      headers: { "x-api-key": key, "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
  const template = (version: string) =>
    Template().fromImage("ubuntu:22.04").runCmd(`echo ${version} > version`);
  const build = (version: string, name: string) => {
    pointSdkAt(urlOf(0));
    return Template.build(template(version), name);
  };
  const cordoned = new Set<number>();
  /** Leaves one server to make sandboxes; all where none is given. */
  const only = async (index: number | undefined): Promise<void> => {
    for (let other = COUNT - running; other < COUNT; other += 1) {
      const isLeftOut = index !== undefined && index !== other;
      // Each change is a program of its own, which takes a second.
      if (cordoned.has(other) === isLeftOut) continue;
      assert.equal((await fleet.coppice(isLeftOut ? "cordon" : "uncordon", `node${other}`)).code, 0);
      if (isLeftOut) cordoned.add(other);
      else cordoned.delete(other);
    }
  };
  /** What the template of a name has, in a sandbox that is asked of a server. */
  const versionOf = async (name: string, index: number): Promise<string> => {
    pointSdkAt(urlOf(index));
    const sandbox = await Sandbox.create(name);
    try {
      return (await sandbox.files.read("version")).trim();
    } finally {
      await sandbox.kill();
    }
  };
  /** A template's entry in the fleet's store. */
  const entryOf = async (id: string): Promise<string> => {
    const key = Buffer.from(`/coppice/templates/${id}`).toString("base64");
    const asked = { method: "POST", body: JSON.stringify({ key }) };
    const answer = await fetch(`${etcd.endpoints[0]}/v3/kv/range`, asked);
    const { kvs = [] } = (await answer.json()) as { readonly kvs?: readonly { readonly value: string }[] };
    return Buffer.from(kvs[0]?.value ?? "", "base64").toString();
  };
  const untilPushed = (id: string, builds: number) =>
    eventually(`${builds} digests`, async () => (await entryOf(id)).split("sha256:").length === builds + 1);

  /** Why a build of a tenant fails. */
  const failureOf = async (body: object, key: string): Promise<string> => {
    const asked = await call(1, "/v3/templates", { method: "POST", key, body: { name: "stolen" } });
    const { templateID: id, buildID } = (await asked.json()) as Record<string, string>;
    await call(1, `/v2/templates/${id}/builds/${buildID}`, { method: "POST", key, body });
    let failure: string | undefined;
    await eventually("the build's end", async () => {
      const answer = await call(1, `/templates/${id}/builds/${buildID}/status`, { key });
      const { status, reason } = (await answer.json()) as {
        readonly status: string;
        readonly reason?: { readonly message: string };
      };
      failure = status === "error" ? (reason?.message ?? "") : undefined;
      return failure !== undefined;
    });
    return failure ?? "";
  };
  /** Changes the layer of a template's image in the registry. */
  const tamper = async (id: string): Promise<void> => {
    const root = join(registry.directory, "storage/docker/registry/v2");
    const layers = await readdir(join(root, `repositories/fleet/${id}/_layers/sha256`));
    for (const digest of layers) {
      const file = join(root, "blobs/sha256", digest.slice(0, 2), digest, "data");
      const data = await readFile(file);
      data.writeUInt8(data.readUInt8(data.length - 20) ^ 1, data.length - 20);
      await writeFile(file, data);
    }
  };

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    hub = await openImageHub(["library/ubuntu:22.04"]);
    registry = await openDockerRegistry();
    etcd = await startEtcd();
    const registries = hub.registries as { readonly insecure: readonly string[] };
    const insecure = [...registries.insecure, registry.address];
    fleet = await startFleet({
      count: COUNT,
      store: { etcd: { endpoints: etcd.endpoints }, lease: "5s", restart: "1s" },
      backend: "linux-namespaces",
      dataDir: directory,
      settings: {
        templates: {
          registries: { ...registries, insecure },
          sharing: { registry: `${registry.address}/fleet`, interval: "1s" },
        },
      },
    });
    for (let index = 0; index < COUNT; index += 1) {
      const config = join(directory, `keys${index}.yaml`);
      const dataDir = join(directory, `node${index}`);
      const plugins = { "access": {}, "local-process": {} };
      await writeFile(config, JSON.stringify({ dataDir, listeners: { api: { port: 0 } }, plugins }));
      const words = ["keys", "create", config, "--tenant", "stranger", "--scopes", "admin"];
      strangers.push((await startCoppice(words).end).stdout.toString().trim());
    }
  });
  after(async () => {
    await fleet[Symbol.asyncDispose]();
    await etcd[Symbol.asyncDispose]();
    if (!isDown) await registry[Symbol.asyncDispose]();
    await hub[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });

  it("another server makes sandboxes of a template that it fetches by its digest", async () => {
    const { templateId } = await build("one", "app");
    await untilPushed(templateId, 1);
    await only(1);
    pointSdkAt(urlOf(0));
    const sandbox = await Sandbox.create("app");
    assert.equal((await sandbox.files.read("version")).trim(), "one");
    assert.deepEqual(await fleet.sandboxes(), [0, 1, 0]);
    // Its configuration is that of the template: the user, and a snapshot that can be an image again.
    assert.equal((await sandbox.commands.run("whoami")).stdout, "user\n");
    const { snapshotId } = await sandbox.createSnapshot();
    await sandbox.kill();
    const copied = await Sandbox.create(snapshotId);
    assert.equal((await copied.files.read("version")).trim(), "one");
    await copied.kill();
    await only(undefined);
  });

  it("a tag leads to its new build at every server from the moment it is there", async () => {
    for (const version of ["two", "three"]) {
      await build(version, "app");
      // Some are made by servers with a copy of the build before.
      for (let count = 0; count < 6; count += 1) assert.equal(await versionOf("app", count % COUNT), version);
    }
    await build("tagged", "app:other");
    const { templateId } = await build("three", "app");
    await untilPushed(templateId, 2);
    await only(2);
    assert.equal(await versionOf("app:other", 1), "tagged");
    pointSdkAt(urlOf(1));
    await Template.assignTags("app:other", ["default"]);
    assert.equal(await versionOf("app", 0), "tagged");
    await Template.removeTags("app", ["other"]);
    await assert.rejects(versionOf("app:other", 0), /tag 'other' does not exist/);
    await only(undefined);
  });

  it("a build starts from a template of another server", async () => {
    const { templateId } = await build("below", "parent");
    await untilPushed(templateId, 1);
    pointSdkAt(urlOf(2));
    const made = await Template.build(Template().fromTemplate("parent").runCmd("cp version above"), "child");
    assert.match(await entryOf(made.templateId), /^$|"node":"node2"/);
    await only(2);
    assert.equal(await versionOf("child", 0), "below");
    await assert.rejects(
      Template.build(Template().fromTemplate("parent:missing"), "orphan"),
      /tag 'missing' does not exist/,
    );
    await only(undefined);
  });

  it("for other tenants it exists as long as it is public, and its image never does", async () => {
    const [, key = ""] = strangers;
    const { templateId } = await build("private", "secret");
    await untilPushed(templateId, 1);
    const tried = async (name: string, index: number): Promise<number> => {
      const body = { templateID: name, timeout: 60 };
      const answer = await call(index, "/sandboxes", { method: "POST", key: strangers[index] ?? "", body });
      const { sandboxID: id } = (await answer.json()) as { readonly sandboxID?: string };
      if (id !== undefined)
        await call(index, `/sandboxes/${id}`, { method: "DELETE", key: strangers[index] ?? "" });
      return answer.status;
    };
    const publish = async (isPublic: boolean) =>
      assert.equal(
        (await call(2, `/v2/templates/${templateId}`, { method: "PATCH", body: { public: isPublic } }))
          .status,
        200,
      );
    for (const index of [0, 1, 2])
      for (const name of [templateId, "secret", "default/secret"])
        assert.equal(await tried(name, index), 404);
    await only(1);
    await publish(true);
    await eventually(
      "the watch of another server tells it",
      async () => (await tried(templateId, 1)) === 201,
    );
    await publish(false);
    assert.equal(await tried(templateId, 1), 404);
    await only(undefined);

    const builds = [...(await entryOf(templateId)).matchAll(/sha256:[0-9a-f]{64}/g)].map(
      ([digest]) => digest,
    );
    const port = registry.address.split(":")[1];
    for (const [address, refusal] of [
      [registry.address, /is for the servers of this fleet/],
      // By another name it is a private address, which clients' builds do not reach.
      [`localhost:${port}`, /has no public address/],
    ] as const) {
      const fromImage = `${address}/fleet/${templateId}@${builds[0]}`;
      assert.match(await failureOf({ fromImage, steps: [] }, key), refusal);
    }
    const push = { template: "secret", image: `${registry.address}/fleet/other:tag` };
    const pushed = await call(0, "/templates/push", { method: "POST", body: push });
    assert.match(await pushed.text(), /is for the servers of this fleet/);
  });

  it("what a registry has changed is not taken: the server that built it makes the sandbox", async () => {
    const { templateId } = await build("true", "checked");
    await untilPushed(templateId, 1);
    await tamper(templateId);
    await only(0);
    await fleet.coppice("uncordon", "node1");
    // The other one is preferred as long as it says that it could.
    for (let count = 0; count < 6; count += 1) assert.equal(await versionOf("checked", 1), "true");
    await only(1);
    await assert.rejects(versionOf("checked", 1), /cannot be fetched/);
    await only(undefined);
  });

  it("a deleted template is so at every server, also at those that have its files", async () => {
    const { templateId } = await build("gone", "deleted");
    await untilPushed(templateId, 1);
    await only(1);
    assert.equal(await versionOf("deleted", 1), "gone");
    assert.equal((await call(2, "/templates/deleted", { method: "DELETE" })).status, 204);
    for (const index of [0, 1, 2]) await assert.rejects(versionOf("deleted", index), /not found/);
    await only(undefined);
  });

  it("the loss of the server that built it does not lose a template", async () => {
    const { templateId } = await build("kept", "kept");
    await untilPushed(templateId, 1);
    await fleet.servers[0]?.stop();
    running -= 1;
    await eventually(
      "another server keeps it",
      async () => /"node":"node[12]"/.test(await entryOf(templateId)),
      60_000,
    );
    for (const index of [1, 2]) {
      await only(index);
      assert.equal(await versionOf("kept", index), "kept");
      assert.equal((await call(index, "/templates/kept/tags")).status, 200);
    }
    await only(undefined);
    pointSdkAt(urlOf(1));
    await Template.build(template("again"), "kept");
    assert.equal(await versionOf("kept", 2), "again");
  });

  it("without the registry a template leads to the server that built it, as ever", async () => {
    await registry[Symbol.asyncDispose]();
    isDown = true;
    pointSdkAt(urlOf(1));
    const { templateId } = await Template.build(template("unpushed"), "unpushed");
    for (const index of [1, 2, 1, 2]) assert.equal(await versionOf("unpushed", index), "unpushed");
    assert.doesNotMatch(await entryOf(templateId), /sha256/);
  });
});
