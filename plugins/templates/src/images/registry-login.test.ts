import assert from "node:assert/strict";
import { it } from "node:test";
import { loginOf } from "./registry-login.js";
import { RegistryProxy } from "./registry-proxy.js";

const { signal } = new AbortController();
const proxy = new RegistryProxy({ proxy: "none", private: [] });
const options = { proxy, signal };

it("credentials of each kind become an account", async (t) => {
  const requests: { readonly url: string; readonly headers: Headers }[] = [];
  t.mock.timers.enable({ apis: ["Date"], now: Date.parse("2026-11-28T12:36:00Z") });
  t.mock.method(globalThis, "fetch", async (url: string, { headers }: RequestInit) => {
    requests.push({ url, headers: new Headers(headers) });
    const authorizationToken = Buffer.from("AWS:a token").toString("base64");
    return Response.json({ authorizationData: [{ authorizationToken }] });
  });
  const aws = { type: "aws", awsAccessKeyId: "id", awsSecretAccessKey: "secret" } as const;
  assert.equal(await loginOf(undefined, options), undefined);
  assert.equal(await loginOf({ type: "registry", username: "", password: "" }, options), undefined);
  assert.deepEqual(await loginOf({ type: "gcp", serviceAccountJson: "{}" }, options), {
    username: "_json_key",
    password: "{}",
  });
  assert.deepEqual(await loginOf({ ...aws, awsRegion: "eu-central-1" }, options), {
    username: "AWS",
    password: "a token",
  });
  assert.equal(requests[0]?.url, "https://api.ecr.eu-central-1.amazonaws.com/");
  assert.equal(
    requests[0]?.headers.get("authorization"),
    "AWS4-HMAC-SHA256 Credential=id/20261128/eu-central-1/ecr/aws4_request, " +
      "SignedHeaders=content-type;host;x-amz-date;x-amz-target, " +
      "Signature=4f1a3eb08478661cc649de18a6339280029826c55db8794a4b6c3494d39a6fce",
  );
  for (const awsRegion of ["", "evil.example/", "us-east-1.evil.example", "127.0.0.1:80/"]) {
    await assert.rejects(
      loginOf({ ...aws, awsRegion }, options),
      /^BuildFailure: access denied .*no region$/,
    );
  }
  assert.equal(requests.length, 1);
});

it("a refusal of AWS is a failure of the build", async (t) => {
  const credentials = {
    type: "aws",
    awsAccessKeyId: "i",
    awsSecretAccessKey: "s",
    awsRegion: "us-east-1",
  } as const;
  const { mock } = t.mock.method(globalThis, "fetch", async () => new Response("{}", { status: 400 }));
  const denied = /^BuildFailure: access denied to the registry of AWS in 'us-east-1': /;
  await assert.rejects(loginOf(credentials, options), denied);
  mock.mockImplementation(async () => new Response("no JSON"));
  await assert.rejects(loginOf(credentials, options), denied);
  mock.mockImplementation(async () => Promise.reject(new Error("unreachable")));
  await assert.rejects(loginOf(credentials, options), denied);
  await assert.rejects(loginOf({ ...credentials, awsAccessKeyId: "i\r\nx: y" }, options), denied);
  const abandoned = AbortSignal.abort(new Error("given up"));
  await assert.rejects(loginOf(credentials, { ...options, signal: abandoned }), /^Error: given up$/);
});
