import assert from "node:assert/strict";
import { it } from "node:test";
import { loginOf, signAws } from "./registry-login.js";
import { RegistryProxy } from "./registry-proxy.js";

const { signal } = new AbortController();
const proxy = new RegistryProxy({ proxy: "none", private: [] });
const options = { proxy, signal };

it("a request is signed as in the test suite of AWS", () => {
  const request = {
    host: "example.amazonaws.com",
    headers: {},
    body: "",
    service: "service",
    region: "us-east-1",
  };
  const key = { id: "AKIDEXAMPLE", secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY" };
  const at = new Date("2015-08-30T12:36:00Z");
  const signatureOf = (method: "GET" | "POST") =>
    signAws({ ...request, method }, key, at)["authorization"]?.replace(/.*Signature=/, "");
  assert.equal(signatureOf("GET"), "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  assert.equal(signatureOf("POST"), "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
});

it("credentials of each kind become an account", async (t) => {
  const requests: { readonly url: string; readonly headers: unknown }[] = [];
  t.mock.method(globalThis, "fetch", async (url: string, { headers }: RequestInit) => {
    requests.push({ url, headers });
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
  const abandoned = AbortSignal.abort(new Error("given up"));
  await assert.rejects(loginOf(credentials, { ...options, signal: abandoned }), /^Error: given up$/);
});
