import assert from "node:assert/strict";
import { it } from "node:test";
import { SandboxError } from "../../kernel/errors.js";
import { memoryBackend } from "../../testing/memory-backend.js";
import { startTestServer } from "../../testing/start-test-server.js";

const working = (name: string) => [memoryBackend({ name }), {}] as const;
const broken = (name: string) =>
  [memoryBackend({ name, onCheck: () => Promise.reject(new Error("no kernel for it")) }), {}] as const;

async function backendOf(plugins: readonly ReturnType<typeof working>[], sandboxes: object): Promise<string> {
  await using server = await startTestServer({ plugins, server: { sandboxes } });
  const { record } = await server.sandboxes.create({ template: "base", timeoutMs: 60_000, secure: false });
  return record.backend;
}

it("the first backend of a list that this host can run is the default", async () => {
  const plugins = [broken("jails"), working("namespaces"), working("processes")];
  const defaultBackend = ["jails", "namespaces", "processes"];
  assert.equal(await backendOf(plugins, { defaultBackend }), "namespaces");
});

it("a backend that cannot run stops the server when it is the only choice, or chosen by name", async () => {
  const plugins = [broken("jails"), working("processes")];
  const reason = /backend 'jails': no kernel for it/;
  await assert.rejects(backendOf(plugins, { defaultBackend: "jails" }), reason);
  await assert.rejects(backendOf(plugins, { defaultBackend: "processes" }), reason);
  const pinned = { defaultBackend: ["jails", "processes"], templates: { base: { backend: "jails" } } };
  await assert.rejects(backendOf(plugins, pinned), reason);
  await assert.rejects(backendOf([broken("jails")], { defaultBackend: ["jails"] }), reason);
});

it("a busy or misconfigured backend stops the server: no weaker one replaces it", async () => {
  for (const reason of [
    { reason: "machines.directory_in_use", code: "unavailable" },
    { reason: "machines.setting_invalid", code: "invalid_argument" },
  ] as const) {
    const busy = memoryBackend({
      name: "namespaces",
      onCheck: () => Promise.reject(new SandboxError(reason, "in use by another server")),
    });
    const defaultBackend = ["namespaces", "processes"];
    await assert.rejects(
      backendOf([[busy, {}], working("processes")], { defaultBackend }),
      /backend 'namespaces': in use by another server/,
    );
  }
});

it("names of backends that are not there are refused", async () => {
  const settings = { defaultBackend: ["processes", "jials"] };
  await assert.rejects(
    backendOf([working("processes")], settings),
    /sandboxes\.defaultBackend: there is no backend 'jials'; enabled are processes/,
  );
});
