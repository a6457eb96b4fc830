import type { FollowedProcess, ShellProcess } from "../processes/sandbox-processes.js";
import { ShellError } from "../shell/shell-error.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { event, inputOf, isBase64, processBody, type ShellRoute, success } from "./route.js";
import { commandOf, outputEvents, sessionOf, startedFields } from "./command-routes.js";

/** Processes of the sandbox, whatever session or surface started them. */
export function processRoutes(config: ShellSessionsConfig): readonly ShellRoute[] {
  const start: ShellRoute = {
    method: "POST",
    path: "/api/process/start",
    async handle({ body, sessions, processes }) {
      const input = inputOf(processBody, body);
      const wanted = commandOf(input);
      const session = sessionOf(input, { sessions, config });
      const id = input.processId ?? undefined;
      return success(startedFields(await processes.start(session, { ...wanted, id }), input));
    },
  };
  return [start, list, killAll, get, kill, logs, stream];
}

const list: ShellRoute = {
  method: "GET",
  path: "/api/process/list",
  async handle({ processes, query }) {
    const all = await processes.list();
    const status = query.get("status");
    const chosen = status === null ? all : all.filter((process) => process.status === status);
    return success({ processes: chosen.map(listedFields) });
  },
};

/** Before the routes with an id, which would take it for one. */
const killAll: ShellRoute = {
  method: "DELETE",
  path: "/api/process/kill-all",
  handle: async ({ processes }) => success({ cleanedCount: await processes.killAll() }),
};

const get: ShellRoute = {
  method: "GET",
  path: "/api/process/:id",
  async handle({ processes, params }) {
    const process = await processes.find(idOf(params));
    const { endedAtMs } = process;
    return success({
      process: { ...listedFields(process), ...(endedAtMs !== undefined && { endTime: timeOf(endedAtMs) }) },
    });
  },
};

const kill: ShellRoute = {
  method: "DELETE",
  path: "/api/process/:id",
  async handle({ processes, params }) {
    await processes.kill(idOf(params));
    return success({ processId: idOf(params) });
  },
};

const logs: ShellRoute = {
  method: "GET",
  path: "/api/process/:id/logs",
  async handle({ processes, params, query }) {
    const held = await processes.logs(idOf(params));
    const { stdout, stderr, truncated } = held;
    return {
      ...success({ processId: idOf(params), ...(truncated && { truncated }) }),
      long: { stdout, stderr },
      held,
      isBase64: isBase64(query.get("encoding")),
    };
  },
};

const stream: ShellRoute = {
  method: "GET",
  path: "/api/process/:id/stream",
  async handle({ processes, params, query, signal }) {
    const followed = await processes.follow(idOf(params), signal);
    return { events: processEvents(followed, { inBase64: isBase64(query.get("encoding")), signal }) };
  },
};

async function* processEvents(
  { process: { id: processId, command, status }, output, now }: FollowedProcess,
  { inBase64, signal }: { readonly inBase64: boolean; readonly signal: AbortSignal },
): AsyncGenerator<Readonly<Record<string, unknown>>> {
  yield event("process_info", { processId, command, status });
  yield* outputEvents(output, { inBase64, fields: { processId } });
  if (signal.aborted) return;
  const ended = await now();
  if (ended.exitCode === undefined) {
    throw new ShellError("PROCESS_ERROR", `The exit code of process '${processId}' is unknown`, {
      processId,
    });
  }
  const data = `Process ${ended.status} with exit code ${ended.exitCode}`;
  yield event("exit", { processId, exitCode: ended.exitCode, data });
}

function listedFields({ id, pid, command, status, startedAtMs, exitCode }: ShellProcess) {
  return {
    id,
    pid,
    command,
    status,
    startTime: timeOf(startedAtMs),
    ...(exitCode !== undefined && { exitCode }),
  };
}

function timeOf(ms: number): string {
  return new Date(ms).toISOString();
}

function idOf({ id = "" }: Readonly<Record<string, string>>): string {
  return id;
}
