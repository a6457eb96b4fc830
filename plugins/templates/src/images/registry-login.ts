import { AwsV4Signer } from "aws4fetch";
import { z } from "zod";
import { BuildFailure } from "../model/build-record.js";
import type { RegistryCredentials } from "../model/build-request.js";
import type { RegistryProxy } from "./registry-proxy.js";

/** An account of a registry. */
export interface RegistryLogin {
  readonly username: string;
  readonly password: string;
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
  const target = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken";
  const signer = {
    method: "POST",
    url: `https://${host}/`,
    headers: { "content-type": "application/x-amz-json-1.1", "x-amz-target": target },
    body: "{}",
    accessKeyId: awsAccessKeyId,
    secretAccessKey: awsSecretAccessKey,
    service: "ecr",
    region: awsRegion,
    allHeaders: true,
  };
  const ask = async (): Promise<Response> => {
    const { headers } = await new AwsV4Signer(signer).sign();
    return proxy.fetch(signer.url, {
      method: signer.method,
      headers: Object.fromEntries(headers),
      body: signer.body,
      signal: AbortSignal.any([signal, AbortSignal.timeout(TOKEN_TIMEOUT_MS)]),
    });
  };
  const answer = await ask().catch((error: unknown) => {
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
