import assert from "node:assert/strict";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import type { DeclaredReason, Plugin } from "@coppice/core";
import { REASONS } from "@coppice/core/backend";
import type { ServedRoute, TestServer } from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { rawExchange } from "../../harness/clients/raw-exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));

/** Routes of Coppice itself. All others are E2B's, as is the answer for an unknown sandbox at one of its ports. */
const OWN =
  /^(POST \/sandboxes\/:id\/exec|UPGRADE \/sandboxes|PATCH \/sandboxes\/:id\/limits|GET \/a(uth|udit)\/|\w+ \/events\/|\w+ \/commands|POST \/files\/(batch|download-url)|GET \/files\/download-token|\w+ \/sandboxes\/:sandboxId\/jupyter)/;
const PORTS: Readonly<Record<string, string>> = { envd: "49983", code: "49999", jupyter: "8888" };

/** The sources of core, the agent and the plugins without tests and without the catalogue. */
async function sources(): Promise<string> {
  const folders = [
    "core",
    "agent",
    ...(await readdir(join(ROOT, "plugins"))).map((name) => `plugins/${name}`),
  ];
  const texts = folders.map(async (folder) => {
    const names = await readdir(join(ROOT, folder, "src"), { recursive: true });
    const code = names.filter((name) => /(?<!\.test|reasons)\.ts$/.test(name));
    return Promise.all(code.map((name) => readFile(join(ROOT, folder, "src", name), "utf8")));
  });
  return (await Promise.all(texts)).flat().join("\n");
}

/** Reasons of core and of all plugins, by name. */
async function catalogue(): Promise<Readonly<Record<string, DeclaredReason>>> {
  const names = await readdir(join(ROOT, "plugins"));
  const modules = names.map(
    async (name) =>
      (await import(join(ROOT, "plugins", name, "dist", "index.js"))) as { readonly default: Plugin },
  );
  const declared = (await Promise.all(modules)).map((module) => module.default.reasons);
  return Object.assign({}, REASONS, ...declared) as Readonly<Record<string, DeclaredReason>>;
}

describe("the catalogue of reasons", () => {
  it("has every reason of the sources, and none that they do not use", async () => {
    const text = await sources();
    const thrown = [...text.matchAll(/new SandboxError\(\s*"([^"]+)"|\breason: "([a-z]+[_.][a-z_.]+)"/g)];
    const used = thrown.map(([, first, second]) => first ?? second ?? "");
    assert.ok(used.length > 200);
    assert.deepEqual(
      [...new Set(used)].filter((reason) => !Object.hasOwn(REASONS, reason)),
      [],
    );
    assert.deepEqual(
      Object.keys(await catalogue()).filter((reason) =>
        Object.hasOwn(REASONS, reason) ? !text.includes(`"${reason}"`) : !text.includes(`REASONS.${reason}`),
      ),
      [],
    );
  });

  it("says of each when it happens and what to do, and names settings that there are", async () => {
    const schema = JSON.parse(await readFile(join(ROOT, "config/schema.json"), "utf8")) as Schema;
    const { plugins, ...server } = schema.properties ?? {};
    const known = { ...server, ...plugins?.properties };
    for (const [reason, { text = "" }] of Object.entries(await catalogue())) {
      assert.match(reason, /^[a-z]+(_[a-z0-9]+)+$/);
      assert.match(text, /^[^|]+\. \| [^|]+\.$/, reason);
      for (const [, path = ""] of text.matchAll(/`([a-z-]+(?:\.[a-z]\w*)+)`/gi)) {
        const found = path
          .split(".")
          .reduce<Schema | undefined>((at, key) => at?.properties?.[key], { properties: known });
        assert.ok(found, `${reason} names the setting ${path}`);
      }
    }
  });
});

interface Schema {
  readonly properties?: Readonly<Record<string, Schema>>;
}

describe("the reason of a refusal", { timeout: 120_000 }, () => {
  let server: TestServer;
  let id: string;
  before(async () => {
    server = await startFullServer();
    const { record } = await server.sandboxes.create({
      template: "base",
      timeoutMs: undefined,
      secure: true,
    });
    ({ id } = record);
  });
  after(() => server.stop());

  /** The body of the answer to a request without credentials. */
  async function refused({ surface, kind, method, path }: ServedRoute): Promise<string | undefined> {
    const filled = path.replaceAll(/:(id|sandboxId)\b/g, id).replaceAll(/:\w+/g, "x");
    if (kind === "upgrade") {
      const head = `GET ${filled} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n`;
      const target = path.startsWith("/sandboxes/")
        ? ""
        : `e2b-sandbox-id: ${id}\r\ne2b-sandbox-port: 8888\r\n`;
      return rawExchange(server.url, `${head}${target}\r\n`, { hangUp: true });
    }
    const port = PORTS[surface];
    const headers = {
      "content-type": "application/json",
      ...(port !== undefined &&
        !path.startsWith("/sandboxes/") && { "e2b-sandbox-id": id, "e2b-sandbox-port": port }),
    };
    const { status, text } = await exchange(server.url, { method, path: filled, headers });
    return status < 400 ? undefined : text;
  }

  it("is in the bodies of Coppice's own routes, and in none of E2B's", async () => {
    const wrong: string[] = [];
    let asked = 0;
    for (const route of server.routes) {
      // Node takes CONNECT for a tunnel, which no surface serves.
      if (!["api", "envd", "code", "jupyter"].includes(route.surface) || route.method === "CONNECT") continue;
      const key = `${route.kind === "upgrade" ? "UPGRADE" : route.method} ${route.path}`;
      const body = await refused(route);
      if (body === undefined) continue;
      asked += 1;
      if (/"reason":"[a-z_]+"/.test(body) !== (OWN.test(key) && route.kind !== "rpc"))
        wrong.push(`${route.surface} ${key}: ${body}`);
    }
    assert.deepEqual(wrong, []);
    assert.ok(asked > 60, `only ${asked} routes refused`);
  });

  it("stands beside code and message, and nowhere without a route", async () => {
    const headers = { "x-api-key": API_KEY };
    const own = await exchange(server.url, { method: "POST", path: "/sandboxes/iunknown/exec", headers });
    const { message, ...rest } = own.json() as Record<string, unknown>;
    assert.match(String(message), /sandbox not found/);
    assert.deepEqual(rest, { code: 404, reason: "sandbox_not_found" });
    const e2b = await exchange(server.url, { path: "/sandboxes/iunknown", headers });
    assert.deepEqual(e2b.json(), { code: 404, message });
    const missing = await exchange(server.url, { path: "/no/such/route", headers });
    assert.deepEqual(Object.keys(missing.json() as object), ["code", "message"]);
  });
});
