import assert from "node:assert/strict";
import { it } from "node:test";
import { templatesConfig } from "../templates-config.js";
import { parseImageReference } from "./image-reference.js";
import { RegistryAccess } from "./registry-access.js";

it("private registries are reached by their own names and from each other, and from no public one", async () => {
  const settings = { private: ["10.0.0.1:5000", "10.0.0.2"], mirrors: { "docker.io": "10.0.0.3/hub" } };
  const access = new RegistryAccess(templatesConfig.parse({ registries: settings }).registries, {});
  const at = (host: string): URL => new URL(`https://${host}/v2/a/`);
  for (const [to, from] of [
    ["10.0.0.1:5000", "10.0.0.1:5000"],
    ["10.0.0.2", "10.0.0.1:5000"],
    ["10.0.0.3", "10.0.0.3"],
  ] as const)
    assert.equal(await access.check(at(to), at(from)), undefined);
  for (const to of ["10.0.0.1:5000", "10.0.0.2", "10.0.0.3"])
    await assert.rejects(access.check(at(to), at("registry.example.com")), { name: "RegistryRefused" });
  assert.equal(typeof (await access.check(at("example.com"), at("10.0.0.2"))), "function");
});

it("the place of a fleet's templates is reserved by each name of it that leads there", () => {
  const mirrors = { "docker.io": "registry.example.com" };
  const { registries } = templatesConfig.parse({ registries: { mirrors } });
  const reached = (text: string, reserved: string, hasCredentials = false): string =>
    new RegistryAccess({ ...registries, reserved }, {}).find(parseImageReference(text), hasCredentials).url
      .href;
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
