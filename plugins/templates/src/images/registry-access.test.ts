import assert from "node:assert/strict";
import { it } from "node:test";
import { templatesConfig } from "../templates-config.js";
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
