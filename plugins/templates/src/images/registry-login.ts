import { createHash, createHmac } from "node:crypto";
import { z } from "zod";
import { BuildFailure } from "../model/build-failure.js";
import type { RegistryCredentials } from "../model/registry-credentials.js";
import type { RegistryProxy } from "./registry-proxy.js";

/** An account of a registry. */
export interface RegistryLogin {
  readonly username: string;
  readonly password: string;
}

/** Request that `signAws` signs. */
export interface AwsRequest {
  readonly method: "GET" | "POST";
  readonly host: string;
  /** In lower case, `host` and `x-amz-date` not included. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly service: string;
  readonly region: string;
}

const REGION = /^[a-z]{2}(-[a-z0-9]{1,20}){1,4}$/;
const TOKEN_TIMEOUT_MS = 30_000;

const ecrAnswer = z.object({
  authorizationData: z.tuple([z.object({ authorizationToken: z.string() })]).rest(z.unknown()),
});

/**
 * Turns credentials of any kind into an account: those of AWS are exchanged for a token.
 * @throws BuildFailure when AWS refuses them, the signal's reason.
 */
export async function loginOf(
  credentials: RegistryCredentials | undefined,
  { proxy, signal }: { readonly proxy: RegistryProxy; readonly signal: AbortSignal },
): Promise<RegistryLogin | undefined> {
  switch (credentials?.type) {
    case undefined:
      return undefined;
    case "registry":
      return credentials.username === "" && credentials.password === "" ? undefined : credentials;
    case "gcp":
      return { username: "_json_key", password: credentials.serviceAccountJson };
    case "aws":
      return ecrLogin(credentials, proxy, signal);
  }
}

async function ecrLogin(
  { awsAccessKeyId, awsSecretAccessKey, awsRegion }: RegistryCredentials & { type: "aws" },
  proxy: RegistryProxy,
  signal: AbortSignal,
): Promise<RegistryLogin> {
  const refuse = (reason: string, cause?: unknown): BuildFailure =>
    new BuildFailure(`access denied to the registry of AWS in '${awsRegion}': ${reason}`, "base", { cause });
  if (!REGION.test(awsRegion)) throw refuse("it is no region");
  const host = `api.ecr.${awsRegion}.amazonaws.com${awsRegion.startsWith("cn-") ? ".cn" : ""}`;
  const request: AwsRequest = {
    method: "POST",
    host,
    headers: {
      "content-type": "application/x-amz-json-1.1",
      "x-amz-target": "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken",
    },
    body: "{}",
    service: "ecr",
    region: awsRegion,
  };
  const answer = await proxy
    .fetch(`https://${host}/`, {
      method: request.method,
      headers: signAws(request, { id: awsAccessKeyId, secret: awsSecretAccessKey }, new Date()),
      body: request.body,
      signal: AbortSignal.any([signal, AbortSignal.timeout(TOKEN_TIMEOUT_MS)]),
    })
    .catch((error: unknown) => {
      signal.throwIfAborted();
      throw refuse(`'${host}' does not answer`, error);
    });
  if (!answer.ok) {
    await answer.body?.cancel();
    throw refuse(`its credentials were answered with ${answer.status}`);
  }
  const body = ecrAnswer.safeParse(await answer.json().catch(() => undefined));
  if (!body.success) throw refuse(`'${host}' gave no token`, body.error);
  const token = Buffer.from(body.data.authorizationData[0].authorizationToken, "base64").toString();
  const [username = "", password = ""] = token.split(":");
  return { username, password };
}

/** Headers of a request to the root of a service of AWS, signed by Signature Version 4. */
export function signAws(
  { method, host, headers, body, service, region }: AwsRequest,
  key: { readonly id: string; readonly secret: string },
  at: Date,
): Record<string, string> {
  const time = at.toISOString().replaceAll(/[-:]|\.\d{3}/g, "");
  const date = time.slice(0, 8);
  const signed: Record<string, string> = { ...headers, host, "x-amz-date": time };
  const names = Object.keys(signed).toSorted();
  const lines = names.map((name) => `${name}:${signed[name]}\n`).join("");
  const canonical = [method, "/", "", lines, names.join(";"), digestOf(body)].join("\n");
  const scope = `${date}/${region}/${service}/aws4_request`;
  const signing = [date, region, service, "aws4_request"].reduce<string | Buffer>(
    (secret, part) => hmacOf(secret, part),
    `AWS4${key.secret}`,
  );
  const signature = hmacOf(signing, ["AWS4-HMAC-SHA256", time, scope, digestOf(canonical)].join("\n"));
  signed["authorization"] =
    `AWS4-HMAC-SHA256 Credential=${key.id}/${scope}, SignedHeaders=${names.join(";")}, Signature=${signature.toString("hex")}`;
  return signed;
}

function digestOf(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}

function hmacOf(key: string | Buffer, text: string): Buffer {
  return createHmac("sha256", key).update(text).digest();
}
