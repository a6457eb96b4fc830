import assert from "node:assert/strict";
import { it } from "node:test";
import { publicDomain, sdkEnvironment } from "./sdk-environment.js";

const listeners = [
  { name: "api", port: 3000, url: "http://127.0.0.1:3000" },
  { name: "volumes", port: 3001, url: "http://127.0.0.1:3001" },
].map((one) => ({ ...one, host: "127.0.0.1", isLoopback: true, insecure: false, tls: false }));

it("an SDK is pointed at the configured domain, and at the listeners where there is none of its own", () => {
  assert.deepEqual(sdkEnvironment(listeners, "sandboxes.example.com"), {
    E2B_DOMAIN: "sandboxes.example.com",
  });
  const urls = {
    E2B_API_URL: "http://127.0.0.1:3000",
    E2B_SANDBOX_URL: "http://127.0.0.1:3000",
    E2B_VOLUME_API_URL: "http://127.0.0.1:3001",
  };
  assert.deepEqual(sdkEnvironment(listeners, undefined), urls);
  assert.deepEqual(sdkEnvironment(listeners, "localhost:0"), urls);
  assert.deepEqual(sdkEnvironment([], undefined), {});
});

it("port 0 of the domain is that of the listener api, any other is kept", () => {
  assert.equal(publicDomain("localhost:0", listeners), "localhost:3000");
  assert.equal(publicDomain("localhost:8080", listeners), "localhost:8080");
  assert.equal(publicDomain("sandboxes.example.com", listeners), "sandboxes.example.com");
  assert.equal(publicDomain(undefined, listeners), undefined);
});
