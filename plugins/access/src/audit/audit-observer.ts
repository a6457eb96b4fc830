import type { Clock, PluginContext, SurfaceRequest } from "@coppice/core";
import type { AuditLog, Outcome } from "./audit-log.js";

type Observer = Parameters<PluginContext<unknown>["observe"]>[1];
type Answered = Parameters<Observer>[1];

interface AuditObserverOptions {
  readonly log: () => Pick<AuditLog, "write">;
  readonly clock: Clock;
  /** Called with the reason when an entry could not be written. */
  readonly onLost: (error: unknown) => void;
}

const MAX_PATH = 512;
/** Parameters of routes whose value is the permission itself. */
const SECRET_PARAMETER = /:(ticket|\w*token)\b/i;
/** A link that was used with another method has no route. */
const LONG_SEGMENT = /\/[^/]{65,}/g;
const READING = new Set(["GET", "HEAD", "OPTIONS"]);
const REFUSALS = new Set([401, 403, 429]);

/** Writes an entry for every modifying request and every failed read, before the client gets its answer. */
export function auditObserver({ log, clock, onLost }: AuditObserverOptions): Observer {
  return (request, answered) => {
    const { id, method, url, principal, clientAddress } = request;
    const outcome = outcomeOf(answered);
    // A WebSocket is a GET, and may do anything.
    if (outcome === "allowed" && READING.has(method) && answered.status !== 101) return;
    try {
      log().write({
        atMs: clock.now(),
        requestId: id,
        address: clientAddress,
        method,
        path: pathOf(url, answered.route).slice(0, MAX_PATH),
        route: answered.route,
        status: answered.status,
        outcome,
        tenant: principal?.tenant,
        principal: principal?.name,
        scopes: [...(principal?.scopes ?? [])],
        sandbox: sandboxOf(request, answered),
        principalType: principal?.type,
        actor: principal?.actor,
      });
    } catch (error) {
      onLost(error);
    }
  };
}

/** The path without secrets: a link's pattern in its place, and no segment that is longer than ids are. */
function pathOf({ pathname }: URL, route: string): string {
  if (SECRET_PARAMETER.test(route)) return route;
  return route === "none" ? pathname.replace(LONG_SEGMENT, "/…") : pathname;
}

function outcomeOf({ status }: Answered): Outcome {
  if (status < 400) return "allowed";
  return REFUSALS.has(status) ? "denied" : "error";
}

/** The sandbox that the route noted, or that the path names. */
function sandboxOf({ url }: SurfaceRequest, { route, sandboxId }: Answered): string | undefined {
  if (sandboxId !== undefined) return sandboxId;
  const at = route.split("/").indexOf("sandboxes") + 1;
  if (at === 0 || !(route.split("/")[at] ?? "").startsWith(":")) return undefined;
  return url.pathname.split("/")[at]?.slice(0, MAX_PATH);
}
