import {
  type Clock,
  fulfilledWithin,
  parseIdempotencyKey,
  permit,
  readJsonBody,
  type RequestCarrier,
  type Router,
  type Sandboxes,
  sandboxesOf,
  ignoring,
  type LiveSandbox,
  SandboxError,
} from "@coppice/core";
import type { Commands, LoggedCommand, StartCommand, StartedCommand } from "@coppice/plugin-commands";
import type { CommandsV1Config } from "../commands-v1-config.js";
import type { NamedSandboxes } from "../sandboxes/named-sandboxes.js";
import { commandBody, startBody, toStartCommand } from "./command-body.js";
import { createHash } from "node:crypto";

/** The answer to a start: the same for a repeated one. */
type Started = Pick<StartedCommand, "id" | "startedAtMs">;

/** Begins the tags of keys: they are neither those of clients nor those of terminals. */
const TAG = "v1-key:";

/**
 * Starts one command for all requests with the same key, also for concurrent ones and after a restart of the server:
 * the key is in the command's tag, which the log keeps.
 */
class StartOnce {
  readonly #commands: Commands;
  readonly #starting = new Map<string, Promise<Started>>();

  constructor(commands: Commands) {
    this.#commands = commands;
  }

  /** @throws SandboxError already_exists when the key was used for another command; the errors of `Commands.start`. */
  async start(sandbox: LiveSandbox, key: string, request: StartCommand): Promise<Started> {
    const name = JSON.stringify([sandbox.record.id, key]);
    const digest = createHash("sha256").update(JSON.stringify(request)).digest("hex");
    for (let other = this.#starting.get(name); other !== undefined; other = this.#starting.get(name)) {
      await other.catch(() => undefined);
    }
    const starting = this.#findOrStart(sandbox, { ...request, tag: `${TAG}${key} ${digest}` }, key);
    this.#starting.set(name, starting);
    try {
      return await starting;
    } finally {
      this.#starting.delete(name);
    }
  }

  async #findOrStart(sandbox: LiveSandbox, request: StartCommand, key: string): Promise<Started> {
    for await (const command of this.#commands.log(sandbox.record.id).list()) {
      if (command.tag?.startsWith(`${TAG}${key} `) !== true) continue;
      if (command.tag === request.tag) return command;
      throw new SandboxError("idempotency_key_reused", "this Idempotency-Key was used for another command");
    }
    return this.#commands.start(sandbox, request);
  }
}

interface CommandRoutesOptions {
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
    // It may end by itself meanwhile.
    await running?.kill("SIGKILL", "group").catch(ignoring("not_found"));
    if (running) await fulfilledWithin(running.ended, { clock, timeoutMs: ENDED_WITHIN_MS });
    ctx.status = 204;
  });
}
