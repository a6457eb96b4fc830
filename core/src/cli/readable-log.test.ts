import assert from "node:assert/strict";
import { it } from "node:test";
import { createLogger } from "../observe/logger.js";
import { readableLog } from "./terminal.js";

it("a log on a terminal has readable lines, and what a guest has written cannot steer the terminal", () => {
  let shown = "";
  const log = createLogger("info", readableLog({ write: (text) => ((shown += String(text)), true) }));
  const templates = log.child({ plugin: "templates" });
  templates.info({ template: "base", step: 3, of: 5 }, "template 'base', step 3 of 5: RUN \u001B[2J");
  templates.warn({ sandbox: "i1", limits: { cpu: 2 } }, "slow");
  log.error({ err: new TypeError("no such key") }, "failed");
  const [step, slow, failed, type, ...stack] = shown.trimEnd().split("\n");
  assert.match(step ?? "", /^\d\d:\d\d:\d\d {7}\[templates\] template 'base', step 3 of 5: RUN \\x1b\[2J$/);
  assert.match(slow ?? "", /^[\d:]{8} warn {2}\[templates\] slow {2}sandbox=i1 {2}limits=\{"cpu":2\}$/);
  assert.match(failed ?? "", /^[\d:]{8} ERROR failed$/);
  assert.equal(type, "    TypeError: no such key");
  assert.match(stack.join("\n"), /readable-log\.test\.js/);
});
