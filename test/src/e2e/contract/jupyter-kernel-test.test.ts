import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { startFullServer } from "../../harness/server/start-full-server.js";

const run = promisify(execFile);
/** An interpreter with jupyter_kernel_test and jupyter_server, as set-up has found it. */
const PYTHON = process.env["COPPICE_PYTHON_JUPYTER"];
const PROGRAM = fileURLToPath(new URL("../../../fixtures/jupyter-kernel-test.py", import.meta.url));
const TESTS = 12;

describe("Jupyter's own test of kernels, through the gateway client of Jupyter Server", () => {
  it(
    "passes",
    {
      skip:
        PYTHON === undefined &&
        "Debian's python3-jupyter-kernel-test and python3-jupyter-server are not installed (npm test installs them, for root)",
      timeout: 240_000,
    },
    async () => {
      await using server = await startFullServer();
      // The gateway client presents no token on its WebSocket.
      const { record } = await server.sandboxes.create({
        template: "base",
        timeoutMs: 600_000,
        secure: false,
      });
      const { stderr } = await run(PYTHON ?? "", [PROGRAM, "-v"], {
        env: {
          PATH: "/usr/bin:/bin",
          HOME: "/nonexistent",
          JUPYTER_GATEWAY_URL: `${server.url}/sandboxes/${record.id}/jupyter`,
        },
        timeout: 200_000,
      }).catch((error: unknown) => {
        assert.ok(error instanceof Error && "stderr" in error);
        assert.fail(String(error.stderr));
      });
      assert.match(stderr, new RegExp(`^Ran ${TESTS} tests`, "m"));
      assert.match(stderr, /^OK/m);
      const skipped = stderr.split("\n").filter((line) => line.includes("... skipped"));
      // Kernels keep no history.
      assert.ok(
        skipped.every((line) => line.includes("test_history")),
        skipped.join("\n"),
      );
    },
  );
});
