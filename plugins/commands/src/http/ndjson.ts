import { Readable } from "node:stream";
import {
  type Router,
  type RequestCarrier,
  SandboxError,
  readJsonBody,
  requestOf,
  targetOf,
} from "@coppice/core";
import { describeExit } from "@coppice/core/backend";
import { z } from "zod";
import type { CommandsConfig } from "../commands-config.js";
import type { CommandSet, Commands, StartedCommand } from "../contract/commands.js";
import { TextLines } from "../contract/text-lines.js";
import { REASONS } from "../reasons.js";

/** With `args`, `cmd` is a program that runs directly; without, a command line for the sandbox's /bin/sh. */
const startBody = z.object({
  cmd: z.string().min(1),
  args: z.array(z.string()).optional(),
  cwd: z.string().optional(),
  env: z.record(z.string(), z.string()).optional(),
  user: z.string().optional(),
  tag: z.string().optional(),
  /** 0 = none, absent = the configured default. */
  timeout_ms: z.int().min(0).optional(),
});

const killBody = z.object({ signal: z.enum(["SIGKILL", "SIGTERM"]).default("SIGKILL") });

/** Serves commands to curl and shell scripts: JSON in, one JSON object per line out. */
export function mountNdjson(
  router: Router,
  { commands, config }: { readonly commands: Commands; readonly config: CommandsConfig },
): void {
  const find = (context: RequestCarrier, pid: string | undefined, among?: CommandSet): StartedCommand => {
    if (!/^\d{1,10}$/.test(pid ?? ""))
      throw new SandboxError(REASONS.process_selector_invalid, "a pid is a number");
    return commands.find(targetOf(context), { pid: Number(pid) }, among);
  };

  router.post("/commands", async (context) => {
    const sandbox = targetOf(context);
    const { cmd, args, cwd, env, user, tag, timeout_ms } = await readJsonBody(context.req, startBody);
    const command = await commands.start(sandbox, {
      ...(args === undefined ? { path: "/bin/sh", args: ["-c", cmd] } : { path: cmd, args }),
      cwd,
      environment: env,
      user,
      tag,
      input: "none",
      timeoutMs: timeout_ms === 0 ? undefined : (timeout_ms ?? config.defaultTimeout),
    });
    const lines = commandLines(command, requestOf(context).signal, config.maxLineSize);
    context.type = "application/x-ndjson";
    context.body = Readable.from(lines);
  });

  router.get("/commands", (context) => {
    context.body = commands.list(targetOf(context)).map(describeCommand);
  });

  router.get("/commands/:pid", (context) => {
    context.body = describeCommand(find(context, context.params["pid"], "retained"));
  });

  router.post("/commands/:pid/kill", async (context) => {
    const command = find(context, context.params["pid"]);
    const { signal } = await readJsonBody(context.req, killBody, { empty: {} });
    await command.kill(signal);
    context.body = { pid: command.pid, killed: true };
  });
}

/** A command as NDJSON lines: start, stdout and stderr line by line, end. Subscribes when it is called. */
function commandLines(
  command: StartedCommand,
  signal: AbortSignal,
  longestLine: number,
): AsyncIterable<string> {
  const output = command.subscribe(signal);
  const texts = { stdout: new TextLines(longestLine), stderr: new TextLines(longestLine) };
  const line = (value: Readonly<Record<string, unknown>>): string => `${JSON.stringify(value)}\n`;

  return (async function* () {
    yield line({ type: "start", pid: command.pid });
    for await (const { stream, data } of output) {
      if (stream === "terminal") continue;
      const lines = texts[stream].push(data).map((text) => line({ type: stream, data: text }));
      if (lines.length > 0) yield lines.join("");
    }
    if (command.end === undefined) return;
    for (const type of ["stdout", "stderr"] as const) {
      for (const data of texts[type].finish()) yield line({ type, data });
    }
    const { exit } = command.end;
    if (exit === undefined)
      throw new SandboxError("sandbox_ended", "the sandbox ended while the command ran");
    yield line({ type: "end", exit_code: describeExit(exit).exitCode });
  })();
}

function describeCommand({ pid, request, startedAtMs, end }: StartedCommand) {
  return {
    pid,
    cmd: request.path,
    args: request.args ?? [],
    cwd: request.cwd,
    tag: request.tag,
    started_at: new Date(startedAtMs).toISOString(),
    status: statusOf(end),
    ...(end === undefined
      ? {}
      : {
          exit_code: end.exit === undefined ? -1 : describeExit(end.exit).exitCode,
          ended_at: new Date(end.endedAtMs).toISOString(),
        }),
  };
}

function statusOf(end: StartedCommand["end"]): "running" | "exited" | "killed" {
  if (end === undefined) return "running";
  return end.outcome === "killed" ? "killed" : "exited";
}
