import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { CHART_CASES, cellOf } from "./chart-cases.js";

const CLIENT = fileURLToPath(new URL("../../../src/e2e/sdk/python-charts.py", import.meta.url));

/**
 * Charts of all cases, as the Python SDK makes them in a sandbox of the server that `pointSdkAt` has named.
 * @returns the class of each, and its attributes
 */
export async function chartsOfPython(
  python: string,
  template?: string,
): Promise<readonly (readonly [kind: string, chart: unknown])[]> {
  const running = promisify(execFile)(python, [CLIENT, ...(template === undefined ? [] : [template])], {
    timeout: 150_000,
  });
  running.child.stdin?.end(JSON.stringify(CHART_CASES.map(cellOf)));
  const { stdout } = await running;
  return JSON.parse(stdout) as Awaited<ReturnType<typeof chartsOfPython>>;
}
