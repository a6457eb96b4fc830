import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { accessConfig } from "./access-config.js";
import { refusedTemplates } from "./quotas.js";
import { type Answer, startAccessServer } from "./testing/access-server.js";

const TEMPLATES = {
  base: { limits: { cpuCount: 2, memoryMiB: 512 } },
  large: { limits: { cpuCount: 4, memoryMiB: 4096 } },
  limitless: {},
};

async function serverWith(quotas: object, sandboxes: object = {}) {
  const running = await startAccessServer({
    settings: { quotas },
    server: { sandboxes: { maximumLimits: { cpuCount: 8 }, templates: TEMPLATES, ...sandboxes } },
  });
  return {
    ...running,
    create: (key: string, templateID = "base"): Promise<Answer> =>
      running.call("POST /v2/sandboxes", { "x-api-key": key }, { templateID }),
  };
}

function assertRefused({ status, headers, json }: Answer, message: RegExp, retryAfter = "1"): void {
  assert.equal(status, 429, JSON.stringify(json));
  assert.equal(json.code, 429);
  assert.match(json.message, message);
  assert.equal(headers.get("retry-after"), retryAfter);
}

describe("quotas", () => {
  it("apply to a hundred creations at once, each of which succeeds or is refused with a Retry-After", async () => {
    await using server = await serverWith({
      everybody: { sandboxes: 7 },
      tenants: { other: { sandboxes: 3 } },
    });
    const keys = [server.newKey(), server.newKey({ tenant: "other" })];
    const answers = await Promise.all(
      Array.from({ length: 100 }, (_, index) => server.create(keys[index % 2] ?? "")),
    );
    const made = answers.filter(({ status }) => status === 201);
    for (const answer of answers) {
      if (answer.status === 201) continue;
      assertRefused(
        answer,
        /^you have reached the maximum number of concurrent E2B sandboxes \([37]\)\. If you need more, ask the operator of this server$/,
      );
    }
    assert.equal(made.length, 10);
    assert.equal(server.backend.alive.sandboxes, 10);
    const [first] = server.sandboxes.of("other").list();
    await server.call(`DELETE /sandboxes/${first?.record.id}`, { "x-api-key": keys[1] ?? "" });
    assert.equal((await server.create(keys[1] ?? "")).status, 201, "there is room again");
    assertRefused(await server.create(keys[1] ?? ""), /\(3\)/);
  });

  it("count volumes and snapshots, and the disk of both; not what forks need", async () => {
    await using server = await startAccessServer({
      settings: {
        quotas: {
          everybody: {},
          tenants: { acme: { volumes: 2, snapshots: 1, storageMiB: 100 } },
        },
      },
      server: { sandboxes: { templates: { base: { limits: { diskMiB: 40 } } } } },
    });
    const [own, other] = [server.newKey(), server.newKey({ tenant: "other" })];
    const ask = (key: string, route: string, body: object) => server.call(route, { "x-api-key": key }, body);
    const volume = (name: string, sizeMB: number, key = own) => ask(key, "POST /volumes", { name, sizeMB });
    const id: string = (await ask(own, "POST /v2/sandboxes", { templateID: "base" })).json.sandboxID;
    assert.equal((await volume("one", 50)).status, 201);
    assertRefused(
      await volume("large", 51),
      /^51 MiB are more than what is left of the quota of 100 MiB \(access\.quotas, storageMiB\): 50 are in use$/,
    );
    assert.equal((await ask(own, `POST /sandboxes/${id}/snapshots`, {})).status, 201);
    assertRefused(await volume("two", 11), /: 90 are in use$/);
    const second = await volume("two", 10);
    assert.equal(second.status, 201);
    assertRefused(
      await volume("three", 1),
      /^you have reached the quota of 2 volumes \(access\.quotas, volumes\)$/,
    );
    assertRefused(
      await ask(own, `POST /sandboxes/${id}/snapshots`, {}),
      /^you have reached the quota of 1 snapshots/,
    );
    assert.equal((await ask(own, `POST /sandboxes/${id}/fork`, { count: 1 })).status, 201);
    assert.equal((await volume("one", 500, other)).status, 201);
    await server.call(`DELETE /volumes/${second.json.volumeID}`, { "x-api-key": own });
    assert.equal((await volume("three", 10)).status, 201, "there is room again");
  });

  it("count CPUs and memory by what templates give", async () => {
    await using server = await serverWith({
      tenants: {
        acme: { cpuCount: 6 },
        other: { memoryMiB: 4608 },
        none: { sandboxes: 0 },
        odd: { cpuCount: 5 },
      },
    });
    const [acme, other, none, free, odd] = ["acme", "other", "none", "free", "odd"].map((tenant) =>
      server.newKey({ tenant }),
    );
    assert.ok(acme && other && none && free && odd);
    assert.equal((await server.create(acme, "large")).status, 201);
    assertRefused(
      await server.create(acme, "large"),
      /^you have reached the quota of 6 CPUs \(access\.quotas, cpuCount\): 4 are in use$/,
    );
    assert.equal((await server.create(acme)).status, 201);
    assertRefused(await server.create(acme), /6 CPUs \(access\.quotas, cpuCount\): 6 are/);
    assert.equal((await server.create(other, "large")).status, 201);
    assert.equal((await server.create(other)).status, 201);
    assertRefused(
      await server.create(other),
      /^you have reached the quota of 4608 MiB of memory \(access\.quotas, memoryMiB\)/,
    );
    assertRefused(await server.create(none), /\(0\)/);
    assert.equal((await server.create(odd, "large")).status, 201);
    assertRefused(await server.create(odd), /5 CPUs .*: 4 are in use/);
    const limitless = await server.create(acme, "limitless");
    assert.equal(limitless.status, 400);
    assert.match(limitless.json.message, /template 'limitless' has no limit of CPUs/);
    assert.equal((await server.create(free, "limitless")).status, 201);
  });

  it("name at the start the templates that they always refuse", () => {
    const templates = [
      { name: "base", aliases: [], limits: { memoryMiB: 512 } },
      { name: "limitless", aliases: [], limits: {} },
    ];
    const settings = accessConfig.parse({ quotas: { tenants: { acme: { memoryMiB: 1 } } } }).quotas;
    assert.deepEqual(refusedTemplates(settings, templates), [
      "quotas of memoryMiB refuse template 'limitless': set sandboxes.templates.limitless.limits.memoryMiB",
    ]);
    assert.deepEqual(refusedTemplates(accessConfig.parse({}).quotas, templates), []);
  });

  it("apply to raised limits of a sandbox, which is no creation", async () => {
    await using server = await serverWith({
      everybody: { cpuCount: 6, sandboxes: 2, creations: { sandboxes: 2 } },
    });
    const key = server.newKey();
    const resize = (id: string, limits: object): Promise<Answer> =>
      server.call(`PATCH /sandboxes/${id}/limits`, { "x-api-key": key }, limits);
    const [one, two] = [await server.create(key), await server.create(key)];
    const [first, second] = [one.json.sandboxID, two.json.sandboxID];
    const answers = await Promise.all([first, second].map((id) => resize(id, { cpuCount: 4 })));
    const [refused, ...others] = answers.filter(({ status }) => status !== 200);
    assert.ok(refused && others.length === 0, "both would be 8 CPUs");
    assertRefused(
      refused,
      /^you have reached the quota of 6 CPUs \(access\.quotas, cpuCount\): 4 are in use$/,
    );
    const grown = answers[0]?.status === 200 ? first : second;
    assert.equal((await resize(grown, { cpuCount: 1 })).status, 200);
    assert.equal((await resize(grown === first ? second : first, { cpuCount: 5 })).status, 200);
  });

  it("limit the rate of creations, and answer with the time to wait", async () => {
    await using server = await serverWith({ everybody: { creations: { sandboxes: 2, per: "1m" } } });
    const [key, other] = [server.newKey(), server.newKey({ tenant: "other" })];
    assert.equal((await server.create(key)).status, 201);
    await server.clock.advance(20_500);
    assert.equal((await server.create(key)).status, 201);
    assertRefused(
      await server.create(key),
      /^you have reached the maximum rate of new sandboxes \(2 in 60 s; access\.quotas, creations\)$/,
      "40",
    );
    assert.equal((await server.create(other)).status, 201);
    await server.clock.advance(39_499);
    assertRefused(await server.create(key), /rate/);
    await server.clock.advance(1);
    assert.equal((await server.create(key)).status, 201);
    assertRefused(await server.create(key), /rate/, "21");
  });

  it("can be planned by metrics: what each tenant has, with all but the first of very many in one sum", async () => {
    await using server = await serverWith({ everybody: {} }, { tenantsInMetrics: 50 });
    const read = async (): Promise<string[]> =>
      (await (await fetch(`${server.urls["ops"]}/metrics`)).text()).split("\n");
    const keys = [server.newKey(), server.newKey({ tenant: 'quo"ted' })];
    const paused = await server.create(keys[0] ?? "");
    for (const key of [keys[0], keys[0], keys[1]]) await server.create(key ?? "", "large");
    const { status } = await server.call(`POST /sandboxes/${paused.json.sandboxID}/pause`, {
      "x-api-key": keys[0] ?? "",
    });
    assert.equal(status, 204);
    const few = await read();
    const expected = (line: string): void =>
      assert.ok(few.includes(line), `${line} in ${few.filter((one) => one.includes("tenant=")).join()}`);
    expected('coppice_sandboxes_of_tenant{tenant="acme",state="running"} 2');
    expected('coppice_sandboxes_of_tenant{tenant="acme",state="paused"} 1');
    expected('coppice_sandboxes_promised_cpus{tenant="acme",state="running"} 8');
    expected('coppice_sandboxes_promised_memory_bytes{tenant="acme",state="paused"} 536870912');
    expected('coppice_sandboxes_promised_memory_bytes{tenant="quo\\"ted",state="running"} 4294967296');
    assert.ok(few.some((line) => /^coppice_host_memory_bytes [1-9]/.test(line)));
    for (let tenant = 0; tenant < 51; tenant += 1)
      await server.create(server.newKey({ tenant: `tenant ${tenant}` }));
    const many = (await read()).filter((line) => line.startsWith("coppice_sandboxes_of_tenant{"));
    assert.equal(many.length, 2 * 51, "fifty tenants, and the rest");
    assert.ok(
      many.includes('coppice_sandboxes_of_tenant{tenant="acme",state="running"} 2'),
      "one of the first",
    );
    assert.ok(many.includes('coppice_sandboxes_of_tenant{tenant="",state="running"} 3'));
    for (const { record } of server.sandboxes.of("acme").list()) await server.sandboxes.kill(record.id);
    assert.ok(
      !(await read()).some((line) => line.startsWith('coppice_sandboxes_of_tenant{tenant="acme"')),
      "one without sandboxes has no series",
    );
  });

  it("are the default ones for a tenant named like an object's property", async () => {
    await using server = await serverWith({ everybody: { sandboxes: 1 } });
    for (const tenant of ["constructor", "toString", "hasOwnProperty"]) {
      const key = server.newKey({ tenant });
      assert.equal((await server.create(key)).status, 201);
      assertRefused(await server.create(key), /\(1\)/);
    }
  });
});
