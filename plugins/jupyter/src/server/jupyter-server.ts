import type { Clock, PluginContext, Sandboxes, Targets } from "@coppice/core";
import { channelsUpgrade } from "./channels-upgrade.js";
import { clientMetrics } from "./client-metrics.js";
import type { CodeContexts } from "../contexts/code-contexts.js";
import { jupyterGuard, jupyterTarget, SANDBOX_PREFIX } from "./jupyter-access.js";
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
}

const SURFACE = "jupyter";

/** Serves Jupyter's interface to the contexts of every sandbox, at a port of it and below `/sandboxes/<id>/jupyter`. */
export function mountJupyterServer(plugin: PluginContext<unknown>, options: JupyterServerOptions): void {
  const { contexts, languages, settings, clock, sandboxes, targets } = options;
  targets.claimPort(settings.port, SURFACE);
  targets.add(jupyterTarget(sandboxes, settings.port));
  plugin.guard(SURFACE, jupyterGuard);

  const kernelsOf = kernelsOfSandboxes({ contexts, settings, clock, log: plugin.log });
  mountJupyter(plugin.http(SURFACE), { kernelsOf, languages, maxBodyBytes: settings.maxBody });

  const metrics = clientMetrics(plugin.metrics);
  const upgrade = channelsUpgrade({ kernelsOf, settings, clock, metrics });
  for (const prefix of ["", SANDBOX_PREFIX]) {
    plugin.upgrade(SURFACE, `${prefix}/api/kernels/:id/channels`, upgrade);
  }
}
