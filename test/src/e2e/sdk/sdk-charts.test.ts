import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import type { TestServer } from "@coppice/core/testing";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";
import { CHART_CASES, cellOf, partOf } from "./chart-cases.js";
import { chartsOfPython } from "./charts-of-python.js";

const PYTHON = process.env["COPPICE_PYTHON_SDK_NEWEST"];

describe("charts of matplotlib, as E2B's own tests want them", { timeout: 180_000 }, () => {
  let server: TestServer;

  before(async () => {
    server = await startFullServer();
    pointSdkAt(server.url);
  });
  after(() => server.stop());

  it("by the JavaScript SDK", async (context) => {
    const sandbox = await Sandbox.create();
    for (const each of CHART_CASES) {
      await context.test(each.name, async () => {
        const { results, error } = await sandbox.runCode(cellOf(each));
        assert.equal(error, undefined, error?.traceback);
        assert.equal(results.length, 1);
        assert.ok(results[0]?.png);
        assert.deepEqual(partOf(results[0].chart, each.chart), each.chart);
      });
    }
  });

  it(
    "by the Python SDK, as objects of its classes",
    { skip: PYTHON === undefined && "PyPI was not reachable when the tests were set up" },
    async (context) => {
      const made = await chartsOfPython(PYTHON ?? "");
      for (const [at, { name, ...expected }] of CHART_CASES.entries()) {
        await context.test(name, () => {
          const [kind, chart] = made[at] ?? [];
          assert.deepEqual([kind, partOf(chart, expected.chart)], [expected.made, expected.chart]);
        });
      }
    },
  );
});
