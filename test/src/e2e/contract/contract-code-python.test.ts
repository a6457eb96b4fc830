import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { API_KEY } from "../../harness/server/api-key.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const run = promisify(execFile);
const PYTHON = process.env["COPPICE_PYTHON_SDK_NEWEST"];
const CLIENT = fileURLToPath(new URL("../../../src/e2e/contract/python-code-contract.py", import.meta.url));

it(
  "the rows of the code interpreter's contract hold for the Python SDK",
  {
    skip: PYTHON === undefined && "PyPI was not reachable when the tests were set up",
    timeout: 180_000,
  },
  async (context) => {
    await using server = await startFullServer({ settings: { jupyter: { keepalive: "300ms" } } });
    const { stdout } = await run(PYTHON ?? "", [CLIENT], {
      env: {
        PATH: process.env["PATH"],
        E2B_API_URL: server.url,
        E2B_SANDBOX_URL: server.url,
        E2B_API_KEY: API_KEY,
      },
      timeout: 150_000,
    });
    const rows = Object.entries(JSON.parse(stdout) as Readonly<Record<string, string | null>>);
    assert.ok(rows.length > 30, `${rows.length} rows`);
    for (const [row, failure] of rows) {
      await context.test(row, () => assert.equal(failure, null, failure ?? ""));
    }
    assert.equal(server.sandboxes.list().length, 0, "nothing is left");
  },
);
