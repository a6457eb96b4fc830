import assert from "node:assert/strict";
import { it } from "node:test";
import { stepProxies } from "./step-proxies.js";

const FOUND = {
  http_proxy: "http://localhost:3128",
  https_proxy: "http://name:secret@10.1.2.3:3128",
  no_proxy: ".example.com",
};
const variables = {
  https_proxy: FOUND.https_proxy,
  HTTPS_PROXY: FOUND.https_proxy,
  no_proxy: FOUND.no_proxy,
  NO_PROXY: FOUND.no_proxy,
};
const none = { variables: {}, services: [], unreachable: [] };

it("commands of recipes get the proxies that a sandbox can reach, and those of clients see no account", async () => {
  assert.deepEqual(await stepProxies("recipes", { tenant: "" }, FOUND), {
    variables,
    services: [{ address: "10.1.2.3", port: 3128 }],
    unreachable: ["http_proxy"],
  });
  assert.deepEqual(await stepProxies("recipes", { tenant: "acme" }, FOUND), none);
  assert.deepEqual((await stepProxies("all", { tenant: "acme" }, FOUND)).variables, variables);
  assert.deepEqual(await stepProxies("none", { tenant: "" }, FOUND), none);
  assert.deepEqual(
    await stepProxies("recipes", { tenant: "" }, { https_proxy: "127.1.2.3:3128", no_proxy: "x" }),
    {
      ...none,
      unreachable: ["https_proxy"],
    },
  );
});
