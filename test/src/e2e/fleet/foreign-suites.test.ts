import { describe } from "node:test";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";

/** With `COPPICE_TEST_FOREIGN=1` each file of `e2e/sdk` and `e2e/contract` does what these do. */
const SUITES = ["sdk-lifecycle", "sdk-code", "sdk-domain", "python-sdk", "examples"];

const missing = reasonWithoutEtcd();
if (missing !== false) describe("the suites of SDKs through a foreign server", { skip: missing }, () => {});
else {
  process.env["COPPICE_TEST_FOREIGN"] = "1";
  for (const name of SUITES) await import(`../sdk/${name}.test.js`);
}
