import assert from "node:assert/strict";
import { it } from "node:test";
import { readCommandLabel, writeCommandLabel } from "./command-label.js";

const FACTS = { id: "0199", startedAtMs: 1000, expiresAtMs: 61_000 };

it("a label brings back what a later server needs, and no variables", () => {
  const request = {
    path: "/bin/bash",
    args: ["-l", "-c", "echo é"],
    cwd: "/tmp",
    tag: "t",
    input: "none" as const,
  };
  const label = writeCommandLabel({ ...request, environment: { SECRET: "hush" } }, FACTS);
  assert.deepEqual(readCommandLabel(label), { ...FACTS, ...request });
  assert.ok(!label.includes("hush"));
});

it("a command too long for a label keeps its name, its tag and its time", () => {
  const long = "é".repeat(5000);
  const byArguments = readCommandLabel(
    writeCommandLabel({ path: "sh", args: [long], cwd: "/tmp", tag: "t" }, FACTS),
  );
  assert.deepEqual(byArguments, { ...FACTS, path: "sh", cwd: "/tmp", tag: "t" });
  const byPath = writeCommandLabel({ path: long, tag: "t" }, FACTS);
  assert.ok(Buffer.byteLength(byPath) <= 4095);
  assert.equal(readCommandLabel(byPath)?.tag, "t");
  assert.deepEqual(readCommandLabel(writeCommandLabel({ path: long, tag: long }, FACTS)), {
    ...FACTS,
    path: "",
  });
});

it("other plugins' labels, and broken ones, are no commands", () => {
  for (const label of ["", "jupyter:{}", "commands:", "commands:{", 'commands:{"id":1}']) {
    assert.equal(readCommandLabel(label), undefined, label);
  }
});
