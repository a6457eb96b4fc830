import {
  parseSandboxId,
  permit,
  type Router,
  readJsonBody,
  requestOf,
  SandboxError,
  type Sandboxes,
  sandboxesOf,
  Shares,
  type Tenants,
  BoundedBytes,
} from "@coppice/core";
import { describeExit } from "@coppice/core/backend";
import type { Commands } from "@coppice/plugin-commands";
import { z } from "zod";
import type { LegacyShimsConfig } from "./legacy-shims-config.js";

export interface ExecOptions {
  readonly sandboxes: Sandboxes;
  readonly commands: Commands;
  readonly tenants: Tenants;
  readonly config: LegacyShimsConfig;
}

/** As in POST /commands, `cmd` is a command line for the shell, or with `args` a program that runs directly. */
function execBody(config: LegacyShimsConfig) {
  return z.object({
    cmd: z.string().min(1),
    args: z.array(z.string()).nullish(),
    cwd: z.string().nullish(),
    env: z.record(z.string(), z.string()).nullish(),
    user: z.string().nullish(),
    timeout_ms: z.int().min(1).max(config.maximumTimeout).nullish(),
  });
}

/** Serves POST /sandboxes/:id/exec: one command, its whole output in one answer. */
export function mountExec(router: Router, { sandboxes, commands, tenants, config }: ExecOptions): void {
  const schema = execBody(config);
  const running = new Shares(config.maxExecutions, tenants);

  router.post("/sandboxes/:id/exec", permit("exec"), async (context) => {
    const sandbox = sandboxesOf(context, sandboxes).get(parseSandboxId(context.params["id"]));
    const body = await readJsonBody(context.req, schema, { limitBytes: config.maxBody });
    const { owner } = sandbox.record;
    const refusal = running.take(owner);
    if (refusal !== undefined) {
      const text = `too many executions run (${refusal}): see legacy-shims.maxExecutions`;
      throw new SandboxError("execution_limit_reached", text);
    }
    try {
      const { cmd, args, cwd, env, user, timeout_ms: timeoutMs } = body;
      const command = await commands.start(sandbox, {
        ...(args ? { path: cmd, args } : { path: config.shell, args: ["-c", cmd] }),
        cwd: cwd ?? undefined,
        environment: env ?? undefined,
        user: user ?? undefined,
        input: "none",
        timeoutMs: timeoutMs ?? config.defaultTimeout,
      });
      const stdout = new BoundedBytes(config.maxOutput);
      const stderr = new BoundedBytes(config.maxOutput);
      // When the client leaves, the command lives on until its time-out.
      for await (const { stream, data } of command.subscribe(requestOf(context).signal)) {
        (stream === "stderr" ? stderr : stdout).push(data);
      }
      if (command.end === undefined) throw new SandboxError("client_gone", "the client is gone");
      const { exit } = command.end;
      if (exit === undefined)
        throw new SandboxError("sandbox_ended", "the sandbox ended while the command ran");
      context.body = {
        stdout: stdout.text,
        stderr: stderr.text,
        exit_code: describeExit(exit).exitCode,
        timed_out: command.expired.aborted,
        truncated: stdout.isTruncated || stderr.isTruncated,
      };
    } finally {
      running.give(owner);
    }
  });
}
