import assert from "node:assert/strict";
import { generateKeyPairSync, sign } from "node:crypto";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import type { TestServer } from "@coppice/core/testing";
import { DurableCommandsClient, type V1Refusal } from "../../harness/clients/durable-commands-client.js";
import { exchange } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { IdentityProvider } from "../../harness/server/identity-provider.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const REFETCH_MS = 500;
const NOW_S = Math.floor(Date.now() / 1000);
const MADE_UP = "0193a000-0000-7000-8000-000000000000";

/** Section 2 of the contract of `/v1`: who may do what. */
describe("/v1 access by its contract", { timeout: 240_000 }, () => {
  let provider: IdentityProvider;
  let server: TestServer;

  before(async () => {
    provider = await IdentityProvider.open();
    const jwt = { ...provider.settings, refetchAfter: `${REFETCH_MS}ms`, clockTolerance: "5s" };
    server = await startFullServer({ settings: { access: { apiKeys: [API_KEY], jwt } } });
  });
  after(async () => {
    await server.stop();
    await provider[Symbol.asyncDispose]();
  });

  const as = (token: string) => new DurableCommandsClient({ url: server.url, token, pollMs: 5, statusMs: 5 });
  const statusOf = async (token: string) => (await as(token).ask("GET", "/sandboxes")).status;

  it("2. each route takes the scope of the table, and no other", async () => {
    const made = await as(provider.token()).create({ image: "base" });
    const of = (path: string) => `/sandboxes/${made.id}${path}`;
    const rows: readonly (readonly [method: string, path: string, scope: string, body?: unknown])[] = [
      ["GET", "/sandboxes", "read"],
      ["GET", of(""), "read"],
      ["GET", of("/commands"), "read"],
      ["GET", of(`/commands/${MADE_UP}`), "read"],
      ["GET", of(`/commands/${MADE_UP}/logs?cursor=0`), "read"],
      ["GET", of(`/commands/${MADE_UP}/logs?follow=true`), "read"],
      ["POST", of("/files/export"), "read", {}],
      ["POST", "/sandboxes", "write", {}],
      ["PATCH", of(""), "write", {}],
      ["POST", of("/start"), "write"],
      ["POST", of("/extend"), "write", {}],
      ["POST", of("/files/import"), "write"],
      ["POST", of("/commands"), "exec", {}],
      ["DELETE", of(`/commands/${MADE_UP}`), "exec"],
      ["POST", of("/stop"), "write"],
      ["DELETE", of(""), "write"],
    ];
    for (const [method, path, needed, body] of rows) {
      const scopes = ["read", "write", "exec", "attach"];
      for (const scope of [...scopes.filter((other) => other !== needed), "", needed]) {
        const token = provider.token({ scp: scope === "" ? [] : [`${scope}:sandbox`, "email"] });
        const { status, text } = await as(token).ask(method, path, body);
        const what = `${method} ${path} with ${scope || "no scope"}: ${status} ${text}`;
        assert.ok(status < 500, what);
        assert.equal(status === 403, scope !== needed, what);
        if (status === 403) assert.equal((JSON.parse(text) as V1Refusal["body"]).code, "forbidden", what);
      }
    }
  });

  it("2. scopes are a list, or one text with spaces; admin is for everything", async () => {
    const { scp: _list, ...text } = { scp: undefined, scope: "openid read:sandbox" };
    assert.equal(await statusOf(provider.token({ scp: undefined, ...text })), 200);
    assert.equal(await statusOf(provider.token({ scp: undefined, scope: "openid write:sandbox" })), 403);
    assert.equal(await statusOf(provider.token({ scp: ["admin:sandbox"] })), 200);
  });

  it("2. every kind of principal has a token, and whoami says whose it is", async () => {
    for (const type of ["user", "service", "agent"]) {
      const client = as(provider.token({ principal_type: type, sub: `a-${type}` }));
      const who = JSON.stringify(await client.whoami());
      assert.match(who, new RegExp(`a-${type}`));
      assert.match(who, /acme/);
      assert.equal((await client.ask("GET", "/sandboxes")).status, 200);
    }
  });

  it("2. who acts for whom, and as what, is in the audit", async () => {
    const acting = as(
      provider.token({ principal_type: "agent", sub: "ada", act: { sub: "agent-7" }, org_id: "audited" }),
    );
    const made = await acting.create({ image: "base" });
    await acting.run(made.id, ["true"]);
    const admin = provider.token({ org_id: "audited", scp: ["admin:sandbox"] });
    const headers = { authorization: `Bearer ${admin}` };
    const { status, text } = await exchange(server.url, { path: "/audit/events", headers });
    assert.equal(status, 200, text);
    const { events } = JSON.parse(text) as { readonly events: readonly Record<string, unknown>[] };
    for (const path of [/^\/v1\/sandboxes$/, /\/commands$/]) {
      const event = events.find(({ method, path: at }) => method === "POST" && path.test(String(at)));
      assert.deepEqual([event?.["principalType"], event?.["actor"]], ["agent", "agent-7"], text);
    }
  });

  it("2. each bad token is 401, never 500", async () => {
    const input = (header: object, claims: object) =>
      [header, claims].map((part) => Buffer.from(JSON.stringify(part)).toString("base64url")).join(".");
    const stranger = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey;
    const forged = input(
      { alg: "RS256", kid: "one" },
      { sub: "ada", exp: NOW_S + 600, aud: "coppice", iss: "https://id.example" },
    );
    const good = provider.token();
    const bad: Readonly<Record<string, string>> = {
      "alg none": provider.unsigned(),
      "HS256 with the public key": provider.confused(),
      "an unknown kid": provider.token({}, { kid: "two" }),
      "no kid": provider.token({}, { header: { kid: undefined } }),
      "another's signature": `${forged}.${sign("sha256", Buffer.from(forged), stranger).toString("base64url")}`,
      "a cut signature": good.slice(0, -8),
      "two parts": good.split(".").slice(0, 2).join("."),
      "expired": provider.token({ exp: NOW_S - 60 }),
      "not yet valid": provider.token({ nbf: NOW_S + 600 }),
      "without an end": provider.token({ exp: undefined }),
      "without a subject": provider.token({ sub: undefined }),
      "a wrong audience": provider.token({ aud: "other" }),
      "a wrong list of audiences": provider.token({ aud: ["other", "another"] }),
      "a wrong issuer": provider.token({ iss: "https://evil.example" }),
      "claims of wrong types": provider.token({ exp: "tomorrow", aud: { a: 1 }, sub: 7 }),
      "no token": "",
      "nonsense": "nonsense",
      "dots": "..",
      "an API key that is none": `e2b_${"0".repeat(40)}`,
    };
    for (const [what, token] of Object.entries(bad)) {
      for (const [method, path] of [
        ["GET", "/sandboxes"],
        ["POST", "/sandboxes"],
        ["GET", "/sandboxes/x/sessions/y"],
        ["GET", "/auth/whoami"],
      ] as const) {
        const { status, text } = await as(token).ask(method, path);
        assert.equal(status, 401, `${what}, ${method} ${path}: ${text}`);
        const { code, message, request_id: id } = JSON.parse(text) as V1Refusal["body"];
        assert.deepEqual(
          [typeof code, typeof message, typeof id],
          ["string", "string", "string"],
          `${what}, ${path}: ${text}`,
        );
      }
    }
    assert.equal(await statusOf(provider.token({ aud: "coppice" })), 200);
    assert.equal(await statusOf(good), 200);
  });

  it("2. an unknown kid has the keys fetched again, but not at a client's will", async () => {
    await pause(REFETCH_MS);
    const before = provider.fetches;
    for (let tried = 0; tried < 30; tried += 1)
      assert.equal(
        await statusOf(provider.token({}, { kid: "one", header: { kid: `made-up-${tried}` } })),
        401,
      );
    assert.ok(provider.fetches - before <= 3, `${provider.fetches - before} fetches`);
    provider.publish("two");
    await pause(REFETCH_MS);
    assert.equal(await statusOf(provider.token({}, { kid: "two" })), 200, "the key that the provider added");
    assert.equal(await statusOf(provider.token({}, { kid: "one" })), 200);
  });
});
