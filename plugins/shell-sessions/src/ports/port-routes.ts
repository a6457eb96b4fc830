import { type Clock, type LiveSandbox, probePort, sleep, within } from "@coppice/core";
import { z } from "zod";
import { ShellError } from "../shell/shell-error.js";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { errorEvent, event, inputOf, type ShellRequest, type ShellRoute } from "../wire/route.js";

const MIN_INTERVAL_MS = 100;
const MAX_INTERVAL_MS = 10_000;
const status = z.int().min(100).max(599);

const watchBody = z.object({
  port: z.int().min(1).max(65_535),
  mode: z.enum(["http", "tcp"]),
  path: z
    .string()
    .max(2048)
    // As a request's line can have it.
    .regex(/^[\x21-\x7e]*$/, "the path has characters that have to be encoded")
    .nullish(),
  statusMin: status.nullish(),
  statusMax: status.nullish(),
  processId: z.string().nullish(),
  interval: z.number().nullish(),
});

type PortWatch = z.infer<typeof watchBody>;
type Event = ReturnType<typeof event>;

interface PortRoutesOptions {
  readonly config: Pick<ShellSessionsConfig, "probeTimeout" | "maxWatches">;
  readonly clock: Clock;
}

/** Waits for programs that listen. */
export function portRoutes({ config, clock }: PortRoutesOptions): readonly ShellRoute[] {
  const watches = new WeakMap<LiveSandbox, number>();
  return [
    {
      method: "POST",
      path: "/api/port-watch",
      async handle(request) {
        const { sandbox, processes } = request;
        const wanted = inputOf(watchBody, request.body);
        if ((watches.get(sandbox) ?? 0) >= config.maxWatches) {
          const message = `The sandbox has ${config.maxWatches} watches already`;
          throw new ShellError("RESOURCE_BUSY", message, { port: wanted.port });
        }
        if (wanted.processId) await processes.find(wanted.processId);
        async function* counted(): AsyncGenerator<Event> {
          watches.set(sandbox, (watches.get(sandbox) ?? 0) + 1);
          try {
            yield* portEvents(request, { ...wanted, clock, probeTimeoutMs: config.probeTimeout });
          } finally {
            watches.set(sandbox, (watches.get(sandbox) ?? 1) - 1);
          }
        }
        return { events: counted() };
      },
    },
  ];
}

interface PortEventsOptions extends PortWatch {
  readonly clock: Clock;
  readonly probeTimeoutMs: number;
}

async function* portEvents(
  { sandbox, processes, signal }: ShellRequest,
  { port, processId, clock, interval, ...probe }: PortEventsOptions,
): AsyncGenerator<Event> {
  yield event("watching", { port });
  const until = AbortSignal.any([signal, sandbox.ended]);
  const intervalMs = Math.min(Math.max(interval ?? 500, MIN_INTERVAL_MS), MAX_INTERVAL_MS);
  while (!until.aborted) {
    // Before the port: another program may listen there.
    if (processId) {
      const { status: state, exitCode } = await processes.find(processId);
      if (state !== "running") {
        yield event("process_exited", { port, ...(exitCode !== undefined && { exitCode }) });
        return;
      }
    }
    const statusCode = await readyStatus(sandbox, { port, clock, ...probe, signal: until });
    if (statusCode !== undefined) {
      yield event("ready", { port, ...(statusCode > 0 && { statusCode }) });
      return;
    }
    await sleep(clock, intervalMs, until).catch(() => undefined);
  }
  if (!signal.aborted) yield { ...errorEvent("The sandbox has ended"), port };
}

type Probe = Pick<
  PortEventsOptions,
  "port" | "mode" | "path" | "statusMin" | "statusMax" | "clock" | "probeTimeoutMs"
>;

/** Status of the answer, 0 for a port that need not answer. Undefined while it is not ready. */
async function readyStatus(
  sandbox: LiveSandbox,
  {
    port,
    mode,
    path,
    statusMin,
    statusMax,
    clock,
    probeTimeoutMs,
    signal,
  }: Probe & { readonly signal: AbortSignal },
): Promise<number | undefined> {
  const asked = mode === "http" ? { path: `/${(path ?? "").replace(/^\//, "")}` } : {};
  const found = await within((until) => probePort(sandbox, { port, ...asked }, until), {
    clock,
    timeoutMs: probeTimeoutMs,
    signal,
    overdue: () => new Error("it did not answer in time"),
  }).catch(() => undefined);
  if (found === undefined || mode === "tcp") return found;
  return found >= (statusMin ?? 200) && found <= (statusMax ?? 399) ? found : undefined;
}
