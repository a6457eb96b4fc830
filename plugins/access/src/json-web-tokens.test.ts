import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, it } from "node:test";
import {
  exportJWK,
  exportPKCS8,
  exportSPKI,
  generateKeyPair,
  importPKCS8,
  type JWK,
  type JWTPayload,
  SignJWT,
} from "jose";
import { START, startAccessServer } from "./testing/access-server.js";

type KeyPair = Awaited<ReturnType<typeof generateKeyPair>>;

const NOW_S = START / 1000;
const CLAIMS = {
  sub: "ada",
  iss: "https://id.example",
  aud: ["other", "coppice"],
  exp: NOW_S + 600,
  org_id: "acme",
  scp: ["read:sandbox", "write:sandbox", "email"],
};

/** An identity provider that publishes keys; `failure` replaces its answer. */
class Provider {
  readonly #server = createServer((_request, response) => {
    this.fetches += 1;
    response.writeHead(this.failure ?? 200, { "content-type": "application/json" });
    response.end(JSON.stringify({ keys: this.keys }));
  });
  keys: JWK[] = [];
  fetches = 0;
  failure: number | undefined;

  async start(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/keys`;
  }

  async publish(kid: string): Promise<KeyPair> {
    const pair = await generateKeyPair("RS256", { extractable: true });
    // Some providers publish keys without `alg`: the server must restrict the algorithm itself.
    this.keys.push({ ...(await exportJWK(pair.publicKey)), kid, use: "sig" });
    return pair;
  }

  stop(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

function sign(
  { privateKey }: KeyPair,
  claims: JWTPayload,
  header: { kid?: string; alg?: string } = { kid: "one" },
) {
  return new SignJWT(claims).setProtectedHeader({ alg: "RS256", ...header }).sign(privateKey);
}

describe("a JWT", () => {
  let provider: Provider;
  let one: KeyPair;
  let server: Awaited<ReturnType<typeof startAccessServer>>;

  before(async () => {
    provider = new Provider();
    await provider.start();
    one = await provider.publish("one");
    const jwt = {
      jwksUrl: provider.url,
      issuer: "https://id.example",
      audience: "coppice",
      clockTolerance: "30s",
      refetchAfter: "1h",
    };
    server = await startAccessServer({ settings: { jwt } });
  });
  after(async () => {
    await server[Symbol.asyncDispose]();
    provider.stop();
  });

  const whoami = (token: string) => server.call("GET /auth/whoami", { authorization: `Bearer ${token}` });

  it("authenticates a tenant with its scopes, in every notation", async () => {
    assert.deepEqual((await whoami(await sign(one, CLAIMS))).json, {
      tenantID: "acme",
      principalName: "ada",
      scopes: ["read", "write"],
    });
    const { scp: _scp, org_id: _organization, ...bare } = CLAIMS;
    const acted = { ...bare, scope: "read:sandbox exec:sandbox openid", act: { sub: "agent-7" } };
    assert.deepEqual((await whoami(await sign(one, acted))).json, {
      tenantID: "sub:ada",
      principalName: "agent-7 for ada",
      scopes: ["read", "exec"],
    });
    // Its only scope is reading, so every other route refuses it.
    const reader = await sign(one, { ...CLAIMS, scp: ["read:sandbox"] });
    const headers = { authorization: `Bearer ${reader}` };
    assert.equal((await server.call("POST /v2/sandboxes", headers, { templateID: "base" })).status, 403);
    assert.equal((await whoami(await sign(one, { ...CLAIMS, scp: [] }))).status, 403);
    const made = await server.call(
      "POST /v2/sandboxes",
      { authorization: `Bearer ${await sign(one, CLAIMS)}` },
      { templateID: "base" },
    );
    assert.equal(made.status, 201);
    assert.equal(server.sandboxes.get(made.json.sandboxID).record.owner, "acme");
  });

  it("is in the audit with its kind and who acted for it", async () => {
    const acting = { ...CLAIMS, scp: ["admin:sandbox"], principal_type: "agent", act: { sub: "agent-7" } };
    const headers = { authorization: `Bearer ${await sign(one, acting)}` };
    await server.call("POST /v2/sandboxes", headers, { templateID: "base" });
    const unknown = await sign(one, { ...CLAIMS, principal_type: "admin", act: { sub: 7 } });
    await server.call("POST /v2/sandboxes", { authorization: `Bearer ${unknown}` }, { templateID: "base" });
    const { events } = (await server.call("GET /audit/events?limit=2", headers)).json;
    const { principalName, principalType, actor } = events[1];
    assert.deepEqual([principalName, principalType, actor], ["agent-7 for ada", "agent", "agent-7"]);
    assert.deepEqual(
      [events[0].principalName, "principalType" in events[0], "actor" in events[0]],
      ["ada", false, false],
    );
  });

  it("is refused with 401 whatever is wrong with it", async () => {
    const stranger = await generateKeyPair("RS256");
    const spki = await exportSPKI(one.publicKey);
    const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url");
    const unsigned = `${encode({ alg: "none", kid: "one" })}.${encode(CLAIMS)}.`;
    const confused = `${encode({ alg: "HS256", kid: "one" })}.${encode(CLAIMS)}`;
    const good = await sign(one, CLAIMS);
    const [head = "", body = "", signature = ""] = good.split(".");
    const { exp: _exp, ...endless } = CLAIMS;
    const { sub: _sub, ...nobody } = CLAIMS;
    const { iss: _iss, ...anybody } = CLAIMS;
    const bad: Record<string, string> = {
      "alg none": unsigned,
      "HS256 with the public key": `${confused}.${createHmac("sha256", spki).update(confused).digest("base64url")}`,
      "another algorithm of the same key": await new SignJWT(CLAIMS)
        .setProtectedHeader({ alg: "PS256", kid: "one" })
        .sign(await importPKCS8(await exportPKCS8(one.privateKey), "PS256")),
      "an unknown kid": await sign(one, CLAIMS, { kid: "two" }),
      "no kid": await sign(one, CLAIMS, {}),
      "somebody else's signature": await sign(stranger, CLAIMS),
      "a changed body": `${head}.${encode({ ...CLAIMS, org_id: "other" })}.${signature}`,
      "a cut signature": `${head}.${body}.${signature.slice(0, -4)}`,
      "no signature": `${head}.${body}.`,
      "no JSON": `${Buffer.from("{").toString("base64url")}.${body}.${signature}`,
      "expired": await sign(one, { ...CLAIMS, exp: NOW_S - 31 }),
      "not yet valid": await sign(one, { ...CLAIMS, nbf: NOW_S + 31 }),
      "no end": await sign(one, endless),
      "no subject": await sign(one, nobody),
      "an empty subject": await sign(one, { ...CLAIMS, sub: "" }),
      "no issuer": await sign(one, anybody),
      "another issuer": await sign(one, { ...CLAIMS, iss: "https://evil.example" }),
      "another audience": await sign(one, { ...CLAIMS, aud: "other" }),
      "an organization that is no name": await sign(one, { ...CLAIMS, org_id: "sub:ada" }),
      "an organization that is no text": await sign(one, { ...CLAIMS, org_id: { a: 1 } }),
    };
    for (const [what, token] of Object.entries(bad)) {
      const { status, json } = await whoami(token);
      assert.equal(status, 401, `${what}: ${JSON.stringify(json)}`);
      const message = what === "expired" ? "the access token has expired" : "the access token is not valid";
      assert.deepEqual(json, { code: 401, message, reason: "credential_invalid" }, what);
    }
    // The tenant of the configured keys, which have all permissions.
    const reserved = await whoami(await sign(one, { ...CLAIMS, org_id: "default" }));
    assert.deepEqual(
      [reserved.status, (reserved.json as { readonly message: string }).message],
      [401, "the tenant 'default' is for keys of this server alone"],
    );
    assert.equal((await whoami(good)).status, 200);
    assert.equal(
      (await whoami(await sign(one, { ...CLAIMS, exp: NOW_S - 29 }))).status,
      200,
      "clocks differ",
    );
    assert.equal(
      (await whoami(await sign(one, { ...CLAIMS, nbf: NOW_S + 29 }))).status,
      200,
      "clocks differ",
    );
  });

  it("with an unknown key causes a new fetch of the keys, but clients cannot force that at will", async () => {
    const before = provider.fetches;
    for (let tried = 0; tried < 20; tried += 1)
      assert.equal((await whoami(await sign(one, CLAIMS, { kid: `made-up-${tried}` }))).status, 401);
    assert.ok(provider.fetches - before <= 1, `${provider.fetches - before} fetches`);
  });

  it("is accepted after the provider changed its keys, and not while they cannot be fetched", async () => {
    const rotating = new Provider();
    await rotating.start();
    const first = await rotating.publish("one");
    const settings = { jwt: { jwksUrl: rotating.url, refetchAfter: "0ms" } };
    await using other = await startAccessServer({ settings });
    const ask = async (pair: KeyPair, kid: string) =>
      other.call("GET /auth/whoami", { authorization: `Bearer ${await sign(pair, CLAIMS, { kid })}` });
    try {
      rotating.failure = 500;
      const unavailable = await ask(first, "one");
      assert.equal(unavailable.status, 503);
      assert.match(unavailable.headers.get("retry-after") ?? "", /^\d+$/);
      rotating.failure = undefined;
      assert.equal((await ask(first, "one")).status, 200);
      rotating.keys = [];
      const second = await rotating.publish("two");
      assert.equal((await ask(second, "two")).status, 200);
      assert.equal((await ask(first, "one")).status, 401, "the old key is gone");
    } finally {
      rotating.stop();
    }
  });
});
