import { describe } from "node:test";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";

/** With `COPPICE_TEST_FOREIGN=1` each file of `e2e/sdk` and `e2e/contract` does what these do. */
const SUITES = [
  "sdk/sdk-lifecycle",
  "sdk/sdk-code",
  "sdk/sdk-domain",
  "sdk/python-sdk",
  "sdk/examples",
  "contract/bad-input",
  "contract/read-scope",
  "contract/tenancy",
  "contract/wrong-tokens",
];

const missing = reasonWithoutEtcd();
if (missing !== false) describe("suites through a foreign server", { skip: missing }, () => {});
else {
  process.env["COPPICE_TEST_FOREIGN"] = "1";
  for (const name of SUITES) await import(`../${name}.test.js`);
}
