import assert from "node:assert/strict";
import { it } from "node:test";
import { templatesConfig } from "../templates-config.js";
import { parseImageReference } from "./image-reference.js";
import { RegistryAccess } from "./registry-access.js";

it("private registries are reached by their own names and from each other, and from no public one", async () => {
  const settings = { private: ["10.0.0.1:5000", "10.0.0.2"], mirrors: { "docker.io": "10.0.0.3/hub" } };
  const access = new RegistryAccess(templatesConfig.parse({ registries: settings }).registries, {});
  const at = (host: string): URL => new URL(`https://${host}/v2/a/`);
  const of = (host: string, isMirror = false) => ({ url: at(host), isMirror });
  for (const [to, from] of [
    ["10.0.0.1:5000", "10.0.0.1:5000"],
    ["10.0.0.2", "10.0.0.1:5000"],
  ] as const)
    assert.equal(await access.check(at(to), of(from)), undefined);
  assert.equal(await access.check(at("10.0.0.3"), of("10.0.0.3", true)), undefined);
  // A mirror has more than what it stands for.
  await assert.rejects(access.check(at("10.0.0.3"), of("10.0.0.3")), { name: "RegistryRefused" });
  for (const to of ["10.0.0.1:5000", "10.0.0.2", "10.0.0.3"])
    await assert.rejects(access.check(at(to), of("registry.example.com")), { name: "RegistryRefused" });
  assert.equal(typeof (await access.check(at("example.com"), of("10.0.0.2"))), "function");
});

it("the place of a fleet's templates is reserved by each name of it that leads there", () => {
  const mirrors = { "docker.io": "registry.example.com" };
  const { registries } = templatesConfig.parse({ registries: { mirrors } });
  const reached = (text: string, reserved: string, hasCredentials = false): string =>
    new RegistryAccess({ ...registries, reserved }, {}).find(parseImageReference(text), { hasCredentials })
      .url.href;
  for (const [text, reserved] of [
    ["registry.example.com/fleet/id", "registry.example.com/fleet"],
    ["registry.example.com:443/fleet/id", "registry.example.com/fleet"],
    ["registry.example.com:0443/fleet/id", "registry.example.com/fleet"],
    ["registry.example.com/fleet/id", "registry.example.com:443/fleet"],
    ["fleet/id", "registry.example.com/fleet"],
    ["registry-1.docker.io/fleet/id", "docker.io/fleet"],
  ] as const)
    assert.throws(() => reached(text, reserved), { name: "RegistryRefused" }, text);
  const other = "registry.example.com/fleets/id";
  assert.equal(reached(other, "registry.example.com/fleet"), "https://registry.example.com/v2/fleets/id/");
  // Credentials are for the registry itself.
  const hub = "https://registry-1.docker.io/v2/fleet/id/";
  assert.equal(reached("fleet/id", "registry.example.com/fleet", true), hub);
});

it("what stands for a registry is pushed to by no name: everybody pulls it", () => {
  const mirrors = { "docker.io": "registry.lan:443/hub", "quay.io": "10.0.0.3:5000" };
  const { registries } = templatesConfig.parse({ registries: { mirrors, private: ["10.0.0.3:5000"] } });
  const access = new RegistryAccess(registries, {});
  const pushed = (text: string): string =>
    access.find(parseImageReference(text), { hasCredentials: true, writes: true }).url.href;
  for (const text of ["registry.lan/hub/library/debian:12", "registry.lan:443/hub/a", "10.0.0.3:5000/a/b"])
    assert.throws(() => pushed(text), {
      name: "RegistryRefused",
      message: /stands for '.*is not pushed to$/,
    });
  assert.equal(pushed("registry.lan/team/a"), "https://registry.lan/v2/team/a/");
  assert.equal(pushed("debian"), "https://registry-1.docker.io/v2/library/debian/");
});
