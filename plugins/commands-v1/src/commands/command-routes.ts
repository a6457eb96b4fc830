import {
  type Clock,
  fulfilledWithin,
  parseIdempotencyKey,
  permit,
  readJsonBody,
  type RequestCarrier,
  type Router,
  SandboxError,
  type Sandboxes,
  sandboxesOf,
} from "@coppice/core";
import type { Commands, LoggedCommand } from "@coppice/plugin-commands";
import type { CommandsV1Config } from "../commands-v1-config.js";
import type { NamedSandboxes } from "../sandboxes/named-sandboxes.js";
import { commandBody } from "./command-body.js";
import { startBody, toStartCommand } from "./start-body.js";
import { StartOnce } from "./start-once.js";

export interface CommandRoutesOptions {
  readonly sandboxes: Sandboxes;
  readonly named: NamedSandboxes;
  readonly commands: Commands;
  readonly clock: Clock;
  readonly config: CommandsV1Config;
}

/** A process that waits in the kernel ends later than its kill. */
const ENDED_WITHIN_MS = 1_000;

/** Routes that start, list, describe and kill commands. */
export function mountCommands(
  router: Router,
  { sandboxes, named, commands, clock, config }: CommandRoutesOptions,
): void {
  const path = `${config.basePath}/sandboxes/:id/commands`;
  const once = new StartOnce(commands);
  const find = async (
    carrier: RequestCarrier,
    { id, cid = "" }: Readonly<Record<string, string | undefined>>,
  ): Promise<LoggedCommand> => {
    const sandboxId = await named.knownId(carrier, id);
    return commands.log(sandboxId).find({ id: cid });
  };

  router.post(path, permit("exec"), async (ctx) => {
    const sandbox = named.get(ctx, ctx.params["id"]);
    const body = await readJsonBody(ctx.req, startBody, { limitBytes: config.maxBody });
    const command = toStartCommand(body);
    const request = { ...command, cwd: command.cwd ?? named.describe(sandbox).workdir };
    const key = parseIdempotencyKey(ctx.req.headers["idempotency-key"]);
    const release = await sandboxes.use(sandbox);
    try {
      const started =
        key === undefined ? await commands.start(sandbox, request) : await once.start(sandbox, key, request);
      ctx.status = 201;
      ctx.body = {
        command_id: started.id,
        phase: "running",
        started_at: new Date(started.startedAtMs).toISOString(),
      };
    } finally {
      release();
    }
  });

  router.get(path, async (ctx) => {
    const sandboxId = await named.knownId(ctx, ctx.params["id"]);
    const listed = [];
    for await (const command of commands.log(sandboxId).list()) {
      if (listed.push(commandBody(command)) >= config.maxListed) break;
    }
    ctx.body = listed;
  });

  router.get(`${path}/:cid`, async (ctx) => {
    ctx.body = commandBody(await find(ctx, ctx.params));
  });

  router.delete(`${path}/:cid`, permit("exec"), async (ctx) => {
    const { id, sandboxId } = await find(ctx, ctx.params);
    const sandbox = sandboxesOf(ctx, sandboxes).find(sandboxId);
    const running = sandbox && commands.list(sandbox).find((command) => command.id === id);
    await running?.kill("SIGKILL", "group").catch(ignoreMissing);
    if (running) await fulfilledWithin(running.ended, { clock, timeoutMs: ENDED_WITHIN_MS });
    ctx.status = 204;
  });
}

/** It may end by itself meanwhile. */
function ignoreMissing(error: unknown): void {
  if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
}
