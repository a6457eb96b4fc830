import assert from "node:assert/strict";
import { it } from "node:test";
import type { Exit } from "./process.js";
import { describeExit, exitCodeOf, exitCodeOfStatus } from "./exit-report.js";

const ENDS: readonly (readonly [string, Exit, ReturnType<typeof describeExit>])[] = [
  ["success", { code: 0 }, { exitCode: 0, exited: true, status: "exit status 0", error: undefined }],
  [
    "failure",
    { code: 43 },
    { exitCode: 43, exited: true, status: "exit status 43", error: "exit status 43" },
  ],
  [
    "unknown program",
    { code: 127 },
    { exitCode: 127, exited: true, status: "exit status 127", error: "exit status 127" },
  ],
  [
    "SIGKILL",
    { signal: "SIGKILL" },
    { exitCode: -1, exited: false, status: "signal: killed", error: "signal: killed" },
  ],
  [
    "SIGTERM",
    { signal: "SIGTERM" },
    { exitCode: -1, exited: false, status: "signal: terminated", error: "signal: terminated" },
  ],
  [
    "a crash",
    { signal: "SIGSEGV", coreDumped: true },
    {
      exitCode: -1,
      exited: false,
      status: "signal: segmentation fault (core dumped)",
      error: "signal: segmentation fault (core dumped)",
    },
  ],
  [
    "an unnamed signal",
    { signal: "SIGXCPU" },
    { exitCode: -1, exited: false, status: "signal: signal 24", error: "signal: signal 24" },
  ],
];

for (const [name, exit, report] of ENDS) {
  it(`${name} is reported as '${report.status}'`, () => {
    assert.deepEqual(describeExit(exit), report);
  });
}

it("clients get the number of a signal back from its name", () => {
  const signals = ["SIGHUP", "SIGBUS", "SIGKILL", "SIGTERM", "SIGXCPU"] as const;
  for (const signal of signals) {
    const { status } = describeExit({ signal, coreDumped: true });
    assert.equal(exitCodeOfStatus(status), exitCodeOf({ signal }), status);
  }
  assert.equal(exitCodeOfStatus("signal: unheard of"), 128);
});
