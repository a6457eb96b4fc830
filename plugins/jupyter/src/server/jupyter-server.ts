import {
  accessTokenOf,
  type Clock,
  HttpError,
  type MemoryRoom,
  type PluginContext,
  type Sandboxes,
  serveSandboxPath,
  type SurfaceRequest,
  type Targets,
} from "@coppice/core";
import { channelsSocket, clientMetrics } from "./channels-socket.js";
import type { CodeContexts } from "../contexts/code-contexts.js";
import { mountJupyter } from "./jupyter-routes.js";
import type { JupyterServerSettings } from "./jupyter-server-config.js";
import type { Languages } from "../programs/languages.js";
import { kernelsOfSandboxes } from "./sandbox-kernels.js";

interface JupyterServerOptions {
  readonly contexts: CodeContexts;
  readonly languages: Languages;
  readonly settings: JupyterServerSettings;
  readonly clock: Clock;
  readonly sandboxes: Sandboxes;
  readonly targets: Targets;
  readonly room: MemoryRoom;
}

const SURFACE = "jupyter";
const AUTHORIZATION = /^(?:token|bearer) +(\S+)$/i;
/** Of the paths where the sandbox is known, and of those that name it. */
const PREFIXES = ["", `/sandboxes/:sandboxId/${SURFACE}`];

/** Serves Jupyter's interface to the contexts of every sandbox, at a port of it and below `/sandboxes/<id>/jupyter`. */
export function mountJupyterServer(plugin: PluginContext<unknown>, options: JupyterServerOptions): void {
  const { contexts, languages, settings, clock, room, sandboxes, targets } = options;
  const guard = serveSandboxPath({
    targets,
    sandboxes,
    surface: SURFACE,
    port: settings.port,
    presented: presentedToken,
    refusal: unknownSandbox,
  });
  plugin.guard(SURFACE, guard);

  const kernelsOf = kernelsOfSandboxes({ contexts, settings, clock, room, log: plugin.log });
  mountJupyter(plugin.http(SURFACE), {
    prefixes: PREFIXES,
    kernelsOf,
    languages,
    maxBodyBytes: settings.maxBody,
  });

  const metrics = clientMetrics(plugin.metrics);
  const paths = PREFIXES.map((prefix) => `${prefix}/api/kernels/:id/channels`);
  plugin.webSocket(SURFACE, paths, channelsSocket({ kernelsOf, settings, clock, metrics }));
}

/** Token that a request presents: browsers need `?token=` for a WebSocket. */
function presentedToken({ headers, url }: Pick<SurfaceRequest, "headers" | "url">): string | undefined {
  return (
    accessTokenOf(headers) ??
    AUTHORIZATION.exec(headers.authorization ?? "")?.[1] ??
    url.searchParams.get("token") ??
    undefined
  );
}

/** Answer for unknown sandboxes and wrong tokens. */
function unknownSandbox(): HttpError {
  // The reason is set here, because an answer before routing would lack it: both answers must be the same.
  const text = "There is no such sandbox, or the token is not its own";
  const reason = "sandbox_not_found";
  return new HttpError(404, text, { reason, body: { code: 404, message: text, reason } });
}
