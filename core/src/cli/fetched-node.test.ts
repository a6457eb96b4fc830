import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const COPPICE = fileURLToPath(new URL("../../bin/coppice.mjs", import.meta.url));
const FETCHED = new URL("../../../.toolchain/node/node_modules/node/bin/node", import.meta.url);
/** Preload: the first process that loads it reports an old version of Node; the next prints its arguments. */
const PRELOADED = `
import { createRequire } from "node:module";
const require = createRequire("/");
if (process.env.IS_OLD) Object.defineProperty(process, "versions", { value: { ...process.versions, node: "18.20.4" } });
else {
  console.log(JSON.stringify([process.execPath, ...process.execArgv]));
  console.log(require("node:fs").readFileSync(0, "utf8"));
}
delete process.env.IS_OLD;`;

it(
  "the fetched Node gets the options and the standard input of the older one that it stands in for",
  { skip: existsSync(FETCHED) ? false : "no Node was fetched: that of this host is new enough" },
  async () => {
    const options = [
      `--import=data:text/javascript,${encodeURIComponent(PRELOADED)}`,
      "--max-semi-space-size=4",
    ];
    const running = promisify(execFile)(process.execPath, [...options, COPPICE, "--help"], {
      env: { ...process.env, IS_OLD: "yes" },
    });
    running.child.stdin?.end("what was piped in");
    const [told = "", input] = (await running).stdout.split("\n");
    assert.deepEqual(JSON.parse(told), [fileURLToPath(FETCHED), ...options]);
    assert.equal(input, "what was piped in");
  },
);
