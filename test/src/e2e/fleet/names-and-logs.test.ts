import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";

describe("names and logs of sandboxes, at the servers of a fleet that do not have them", () => {
  let directory: string;
  let fleet: Fleet;
  const ask = (server: number, method: string, path: string, body?: object) =>
    exchange(fleet.servers[server]?.url ?? "", {
      method,
      path,
      headers: { authorization: `Bearer ${API_KEY}` },
      ...(body && { body: JSON.stringify(body) }),
    });
  const create = (server: number) => ask(server, "POST", "/v1/sandboxes", { image: "base", name: "build" });
  const serverOf = (id: string) => fleet.servers.findIndex(({ sandboxes }) => sandboxes.find(id));

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-names-"));
    fleet = await startFleet({
      count: 2,
      store: { file: join(directory, "fleet.sqlite") },
      settings: { commands: { log: { enabled: true } } },
    });
  });
  after(async () => {
    await fleet[Symbol.asyncDispose]();
    await rm(directory, { recursive: true });
  });

  it("a name leads to its sandbox, is taken on all servers, and is free at once when that is gone", async () => {
    for (const round of [0, 1]) {
      const made = await create(round);
      assert.equal(made.status, 201, made.text);
      const { id } = made.json() as { readonly id: string };
      const foreign = 1 - serverOf(id);
      const found = await ask(foreign, "GET", "/v1/sandboxes/build");
      assert.equal((found.json() as { readonly id?: string }).id, id, found.text);
      for (const server of [0, 1]) assert.equal((await create(server)).status, 409);
      assert.equal((await ask(foreign, "DELETE", "/v1/sandboxes/build")).status, 204);
      assert.equal((await ask(foreign, "GET", "/v1/sandboxes/build")).status, 404);
    }
  });

  it("a log is read after the end of its sandbox, and a run by its id", async () => {
    const made = await ask(0, "POST", "/v1/sandboxes", { image: "base", name: "logged" });
    const { id } = made.json() as { readonly id: string };
    const foreign = 1 - serverOf(id);
    const argv = ["echo", "kept"];
    const started = await ask(foreign, "POST", `/v1/sandboxes/logged/commands`, { argv });
    const { command_id: command } = started.json() as { readonly command_id: string };
    const path = `/v1/sandboxes/${id}/commands/${command}/logs`;
    await eventually("its output", async () =>
      (await ask(foreign, "GET", path)).text.includes("kept") ? true : undefined,
    );
    await ask(foreign, "DELETE", "/v1/sandboxes/logged");
    assert.match((await ask(foreign, "GET", path)).text, /kept/);
    assert.match((await ask(foreign, "GET", `/sandboxes/${id}/logs`)).text, /kept/);

    const ran = await ask(0, "POST", "/v1/one-shot-runs", { argv });
    const { run_id: run } = ran.json() as { readonly run_id: string };
    for (const server of [0, 1])
      assert.match((await ask(server, "GET", `/v1/one-shot-runs/${run}`)).text, /kept/);
    assert.equal((await ask(1, "GET", "/v1/one-shot-runs/unknown")).status, 404);
  });
});
