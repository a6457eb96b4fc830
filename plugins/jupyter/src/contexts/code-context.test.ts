import assert from "node:assert/strict";
import { it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { Registry } from "prom-client";
import { CodeContext } from "./code-context.js";
import { kernelMetrics } from "../kernel/kernel-metrics.js";
import { ScriptedKernel } from "../testing/scripted-kernel.js";

it("a kernel that did not accept its environment gets it again", async () => {
  const scripted = new ScriptedKernel();
  const { sandbox, tenant, user, settings, log } = scripted.start;
  let environment: Readonly<Record<string, string>> = {};
  const context = new CodeContext({
    id: "context",
    language: "python",
    isDefault: true,
    userName: undefined,
    cwd: "/",
    zygote: undefined,
    sandbox,
    tenant,
    user,
    settings,
    log,
    program: scripted.start.program,
    isFrozen: () => false,
    environment: () => environment,
    maxWaiting: 1,
    maxOutputBytes: 1,
    metrics: kernelMetrics(new Registry()),
    kernelChanged: async () => undefined,
  });
  const ready = context.ready();
  const info = await scripted.asked("kernel_info_request");
  scripted.say("control", "kernel_info_reply", info, { status: "ok" });
  scripted.say("iopub", "status", info, { execution_state: "idle" });
  await ready;

  environment = { NAME: "value" };
  const refused = context.renewEnvironment();
  await assert.rejects(refused, { code: "failed_precondition" });
  const renewed = context.renewEnvironment();
  const asked = await scripted.asked("coppice_environment_request", 1);
  scripted.say("control", "coppice_environment_reply", asked, { status: "ok" });
  scripted.say("iopub", "status", asked, { execution_state: "idle" });
  await renewed;
  await context.renewEnvironment();
  await delay(20);
  const asks = scripted.sent.filter(({ type }) => type === "coppice_environment_request");
  assert.equal(asks.length, 2, "one that has it is not asked again");
  await context.kill();
});
