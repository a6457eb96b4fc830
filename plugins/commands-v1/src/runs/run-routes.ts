import {
  parseInput,
  type Peers,
  permit,
  readJsonBody,
  requestOf,
  type Router,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import type { CommandsV1Config } from "../commands-v1-config.js";
import { startBody, toStartCommand } from "../commands/command-body.js";
import type { LogAnswer } from "../logs/log-routes.js";
import { nameBelow } from "../sandboxes/named-sandboxes.js";
import type { OneShotRuns, RunOutput } from "./one-shot-runs.js";
import type { Run } from "../store/commands-v1-store.js";

interface RunRoutesOptions {
  readonly runs: OneShotRuns;
  readonly answerLog: LogAnswer;
  readonly peers: Peers;
  readonly config: CommandsV1Config;
}

const runQuery = z.object({ detach: z.enum(["true", "false"]).optional() });

/** Routes of one-shot runs: one command in a sandbox of its own. */
export function mountRuns(router: Router, { runs, answerLog, peers, config }: RunRoutesOptions): void {
  const path = `${config.basePath}/one-shot-runs`;
  const runBody = startBody.extend({
    image: z.string().min(1).nullish(),
    timeout_seconds: z
      .number()
      .positive()
      .max(config.maxRunTimeout / 1000)
      .nullish(),
  });
  const bodyOf = (run: Run, output: RunOutput) => {
    const { id, sandboxId, phase, exitCode, createMs, execMs, cleanupMs, error } = run;
    return {
      run_id: id,
      sandbox_id: sandboxId,
      sandbox_name: sandboxId,
      state: phase,
      exit_code: exitCode ?? null,
      links: { logs: `${path}/${id}/logs` },
      timing: {
        create_ms: createMs,
        exec_ms: execMs ?? null,
        cleanup_ms: cleanupMs ?? null,
        total_ms: execMs === undefined ? null : createMs + execMs + (cleanupMs ?? 0),
      },
      ...output,
      ...(error !== undefined && { error }),
    };
  };

  peers.hold({
    kind: "one-shot run",
    surface: "api",
    inPath: nameBelow(path),
    has: (reference, tenant) => runs.has(tenant, reference),
  });

  router.post(path, permit("write"), permit("exec"), async (ctx) => {
    const { signal } = requestOf(ctx);
    const { detach } = parseInput(runQuery, ctx.query);
    const body = await readJsonBody(ctx.req, runBody, { limitBytes: config.maxBody });
    const run = await runs.start({
      owner: tenantOf(ctx),
      template: body.image ?? config.runTemplate,
      command: {
        ...toStartCommand(body),
        timeoutMs: (body.timeout_seconds ?? config.runTimeout / 1000) * 1000,
      },
      signal,
    });
    if (detach === "true") {
      ctx.status = 202;
      ctx.body = bodyOf(run, await runs.output(run));
      return;
    }
    // A client that leaves does not know the run's id.
    const leave = (): void => void runs.remove(run).catch(() => undefined);
    signal.addEventListener("abort", leave, { once: true });
    if (signal.aborted) leave();
    const finished = await runs.finished(run);
    signal.removeEventListener("abort", leave);
    ctx.body = bodyOf(finished, await runs.output(finished));
  });

  router.get(`${path}/:id`, async (ctx) => {
    const run = runs.find(tenantOf(ctx), ctx.params["id"] ?? "");
    ctx.body = bodyOf(run, await runs.output(run));
  });

  router.get(`${path}/:id/logs`, async (ctx) => {
    const { sandboxId, commandId } = runs.find(tenantOf(ctx), ctx.params["id"] ?? "");
    await answerLog(ctx, { sandboxId, id: commandId });
  });

  router.delete(`${path}/:id`, async (ctx) => {
    await runs.remove(runs.find(tenantOf(ctx), ctx.params["id"] ?? ""));
    ctx.status = 204;
  });
}
