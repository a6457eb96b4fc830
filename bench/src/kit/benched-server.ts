import { eventually } from "@coppice/core/testing";
import { API_KEY } from "@coppice/test/harness/server/api-key.js";
import { exchange } from "@coppice/test/harness/clients/exchange.js";
import {
  type Installation,
  makeInstallation,
  namespacePlugins,
  ServerProcess,
} from "@coppice/test/harness/server/server-process.js";
import {
  type FreebsdHost,
  openFreebsdHost,
  PYTHON_INSIDE,
} from "@coppice/test/harness/freebsd/freebsd-host.js";
import { PYTHON } from "@coppice/test/harness/host/python.js";
import type { BackendName } from "@coppice/test/harness/server/start-full-server.js";
import { ServerClient } from "./server-client.js";
import { LONGEST_STALL } from "@coppice/test/harness/server/stall-meter.js";
import { WatchedProcess } from "./watched-process.js";

const READY_MS = 60_000;
/** Metric: number of sandboxes in the pool of the template `warm`. */
export const WARM = 'coppice_sandboxes_warm{template="warm"}';

export interface BenchedServerOptions {
  /** Settings of plugins in place of the usual ones; those of `jupyter` are merged with them. */
  readonly settings?: Readonly<Record<string, unknown>>;
  /** Settings of the pool of the template `warm`; one that grows to one sandbox when absent. */
  readonly pool?: Readonly<Record<string, unknown>>;
  /** Settings of the pool of the template `base`; none when absent. */
  readonly basePool?: Readonly<Record<string, unknown>>;
  /** `warn` when absent. */
  readonly logLevel?: "warn" | "debug";
  readonly http?: Readonly<Record<string, unknown>>;
  /** In place of the usual ones. */
  readonly listeners?: Readonly<Record<string, unknown>>;
}

/** `coppice start` in a separate process, and a client of it. */
export class BenchedServer extends ServerClient {
  readonly process: WatchedProcess;
  readonly #installation: Installation;
  readonly #server: ServerProcess;
  readonly #freebsd: FreebsdHost | undefined;

  private constructor(installation: Installation, process: ServerProcess, freebsd: FreebsdHost | undefined) {
    super(process.url, API_KEY);
    this.#installation = installation;
    this.#freebsd = freebsd;
    this.#server = process;
    this.process = new WatchedProcess(process.pid, async () => Number(await process.ask(LONGEST_STALL)));
  }

  static async start(
    backend: BackendName,
    {
      settings = {},
      pool = { max: 1 },
      basePool = {},
      logLevel = "warn",
      http,
      listeners,
    }: BenchedServerOptions = {},
  ): Promise<BenchedServer> {
    const freebsd = backend === "jail-freebsd" ? await openFreebsdHost() : undefined;
    const installation = await makeInstallation({
      config: {
        log: { level: logLevel },
        ...(http && { http }),
        ...(listeners && { listeners }),
        // A pool without `min` starts with its first miss: benchmarks that do not use it do not pay for it.
        sandboxes: {
          maximum: 1000,
          defaultBackend: backend,
          templates: { base: { pool: basePool }, zygote: {}, warm: { pool } },
        },
      },
      plugins: (directory) => {
        const own = backend === "linux-namespaces" ? isolatedPlugins(directory) : jailPlugins(freebsd);
        const templates = { zygote: { zygote: true }, warm: { kernel: "eager" } };
        const jupyter = {
          python: PYTHON,
          ...settingsIn(own, "jupyter"),
          templates,
          ...settingsIn(settings, "jupyter"),
        };
        // A benchmark creates and removes hundreds of sandboxes per second with one key, more than the usual rate
        // limit allows.
        const rate = { requests: 1_000_000, per: "1s" };
        const access = { apiKeys: [API_KEY], rateLimits: { perAddress: rate, perKey: rate } };
        return { access, ...own, ...settings, jupyter };
      },
    });
    try {
      const server = await ServerProcess.start(installation.configFile, {
        NODE_OPTIONS: `--import=${import.meta.resolve("@coppice/test/harness/server/stall-meter.js")}`,
      });
      return new BenchedServer(installation, server, freebsd);
    } catch (error) {
      await installation.remove();
      await freebsd?.[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Lines of its log. The array grows. */
  get printed(): readonly string[] {
    return this.#server.printed;
  }

  /** A folder for files of a benchmark, removed with the server. */
  get scratch(): string {
    return this.#installation.directory;
  }

  /** One sample of the server's metrics; 0 where there is none. */
  async metric(sample: string): Promise<number> {
    const { text } = await exchange(this.#server.urls["ops"] ?? "", { path: "/metrics" });
    const line = text.split("\n").find((candidate) => candidate.startsWith(`${sample} `));
    return Number(line?.slice(sample.length) ?? 0);
  }

  /** Waits until the metric `sample` of the server is `count`. @throws Error that names `what`. */
  async untilThere(what: string, sample: string, count = 1): Promise<void> {
    await eventually(what, async () => (await this.metric(sample)) === count, READY_MS);
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    await super[Symbol.asyncDispose]();
    await this.#server.stop();
    await this.#installation.remove();
    await this.#freebsd?.[Symbol.asyncDispose]();
  }
}

/** Makes sandboxes of namespaces; all templates are the same. */
function isolatedPlugins(directory: string): Readonly<Record<string, unknown>> {
  const plugins = namespacePlugins(directory);
  const own = settingsIn(plugins, "linux-namespaces");
  const base = { kind: "base", python: PYTHON };
  return { ...plugins, "linux-namespaces": { ...own, templates: { base, warm: base, zygote: base } } };
}

/** Makes sandboxes of jails on a host that is stood in for; all templates are the same. */
function jailPlugins(freebsd: FreebsdHost | undefined): Readonly<Record<string, unknown>> {
  if (freebsd === undefined) return {};
  const { templates } = freebsd.settings;
  const { base } = templates;
  return {
    "jupyter": { python: PYTHON_INSIDE },
    "jail-freebsd": { ...freebsd.configuration, templates: { ...templates, warm: base, zygote: base } },
  };
}

function settingsIn(plugins: Readonly<Record<string, unknown>>, name: string): object {
  const settings = plugins[name];
  return typeof settings === "object" && settings !== null ? settings : {};
}
