import { createHmac, generateKeyPairSync, type KeyObject, sign } from "node:crypto";
import { createServer, type Server } from "node:http";
import { once } from "node:events";
import type { AddressInfo } from "node:net";

const ISSUER = "https://id.example";
const AUDIENCE = "coppice";

type Claims = Readonly<Record<string, unknown>>;

/** An identity provider of this process: it publishes keys and signs tokens, good ones and bad ones. */
export class IdentityProvider implements AsyncDisposable {
  readonly #keys = new Map<string, { readonly publicKey: KeyObject; readonly privateKey: KeyObject }>();
  readonly #server: Server;
  /** How often the keys were fetched. */
  fetches = 0;

  private constructor() {
    this.#server = createServer((_request, response) => {
      this.fetches += 1;
      const keys = [...this.#keys].map(([kid, { publicKey }]) => ({
        ...publicKey.export({ format: "jwk" }),
        kid,
        use: "sig",
      }));
      response.setHeader("content-type", "application/json").end(JSON.stringify({ keys }));
    });
  }

  static async open(): Promise<IdentityProvider> {
    const provider = new IdentityProvider();
    provider.publish("one");
    provider.#server.listen(0, "127.0.0.1");
    await once(provider.#server, "listening");
    return provider;
  }

  /** Settings of the plugin `access`. */
  get settings() {
    const { port } = this.#server.address() as AddressInfo;
    return { jwksUrl: `http://127.0.0.1:${port}/keys`, issuer: ISSUER, audience: AUDIENCE };
  }

  publish(kid: string): void {
    this.#keys.set(kid, generateKeyPairSync("rsa", { modulusLength: 2048 }));
  }

  /** A token of a person of `acme` with every scope but the operator's, with claims and header laid over. */
  token(
    claims: Claims = {},
    { kid = "one", header = {} }: { readonly kid?: string; readonly header?: Claims } = {},
  ) {
    const input = inputOf({ alg: "RS256", kid, ...header }, claims);
    const { privateKey } = this.#keys.get(kid) ?? { privateKey: stranger() };
    return `${input}.${sign("sha256", Buffer.from(input), privateKey).toString("base64url")}`;
  }

  /** A token without a signature. */
  unsigned(): string {
    return `${inputOf({ alg: "none", kid: "one" }, {})}.`;
  }

  /** A token whose secret is the public key. */
  confused(): string {
    const input = inputOf({ alg: "HS256", kid: "one" }, {});
    const secret = this.#keys.get("one")?.publicKey.export({ type: "spki", format: "pem" }) ?? "";
    return `${input}.${createHmac("sha256", secret).update(input).digest("base64url")}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }
}

function inputOf(header: Claims, claims: Claims): string {
  const now = Math.floor(Date.now() / 1000);
  const usual = {
    sub: "ada",
    iss: ISSUER,
    aud: ["other", AUDIENCE],
    exp: now + 3600,
    org_id: "acme",
    principal_type: "user",
    email: "ada@id.example",
    scp: ["read", "write", "exec", "attach"].map((scope) => `${scope}:sandbox`),
  };
  const encoded = [header, { ...usual, ...claims }].map((part) =>
    Buffer.from(JSON.stringify(part)).toString("base64url"),
  );
  return encoded.join(".");
}

function stranger(): KeyObject {
  return generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey;
}
