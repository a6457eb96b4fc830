import { readdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { API_KEY } from "@coppice/test/harness/server/api-key.js";
import { Scrape } from "@coppice/test/harness/clients/scrape.js";
import {
  type Installation,
  makeInstallation,
  namespacePlugins,
  ServerProcess,
} from "@coppice/test/harness/server/server-process.js";
import type { Host } from "@coppice/test/harness/host/test-network.js";

export const FLEET_PORT = 3100;
const API_PORT = 3000;
const OPS_PORT = 9464;
const SECRET = "5eed".repeat(16);

export type NodeBackend = "local-process" | "linux-namespaces";

export interface FleetNodeOptions {
  readonly host: Host;
  readonly endpoints: readonly string[];
  readonly backend: NodeBackend;
  readonly leaseMs: number;
  /** True: it never stops serving by itself, which a test has to notice. */
  readonly isUnfenced: boolean;
}

/** A server of the fleet on a machine of the test's network. */
export class FleetNode {
  readonly host: Host;
  readonly url: string;
  readonly #options: FleetNodeOptions;
  readonly #installation: Installation;
  #server: ServerProcess | undefined;
  /** False once it was killed or stopped, for starts that are under way. */
  #isWanted = false;

  static async install(options: FleetNodeOptions): Promise<FleetNode> {
    const { host, endpoints, backend, leaseMs } = options;
    const listener = { host: host.address, insecure: true };
    const installation = await makeInstallation({
      config: {
        listeners: {
          api: { ...listener, port: API_PORT },
          ops: { ...listener, port: OPS_PORT },
          fleet: { ...listener, port: FLEET_PORT },
        },
        sandboxes: { defaultBackend: backend, templates: { base: {} } },
      },
      plugins: (directory) => ({
        // More than clients want, so that none is refused.
        "access": { apiKeys: [API_KEY], quotas: { everybody: { sandboxes: 50 } } },
        "local-process": { directory },
        ...(backend === "linux-namespaces" && { ...namespacePlugins(directory) }),
        "fleet": {
          node: host.name,
          address: `http://${host.address}:${FLEET_PORT}`,
          secret: SECRET,
          lease: `${leaseMs}ms`,
          restart: "20s",
          connectTimeout: "500ms",
          offerTimeout: "500ms",
          gatherTimeout: "1s",
          etcd: { endpoints, timeout: "500ms" },
        },
      }),
    });
    return new FleetNode(options, installation);
  }

  private constructor(options: FleetNodeOptions, installation: Installation) {
    this.#options = options;
    this.#installation = installation;
    this.host = options.host;
    this.url = `http://${options.host.address}:${API_PORT}`;
  }

  get name(): string {
    return this.host.name;
  }

  get directory(): string {
    return this.#installation.directory;
  }

  /** Starts it, again and again as a supervisor does. @throws Error with its output, when it does not start at all. */
  async start(timeoutMs = 600_000): Promise<void> {
    const deadline = performance.now() + timeoutMs;
    this.#isWanted = true;
    for (;;) {
      try {
        this.#server = await ServerProcess.start(
          this.#installation.configFile,
          {
            NODE_OPTIONS: `--import=${import.meta.resolve("@coppice/test/harness/server/preloaded.js")}`,
            // Starts take half of a round's work.
            NODE_COMPILE_CACHE: join(tmpdir(), "compiled"),
            ...(this.#options.isUnfenced && { COPPICE_TEST_OPEN_FENCES: "1" }),
          },
          this.host.enter,
        );
        return;
      } catch (error) {
        if (performance.now() > deadline || !this.#isWanted) throw error;
        await pause(200);
      }
    }
  }

  async kill(): Promise<void> {
    this.#isWanted = false;
    this.signal("SIGKILL");
    await this.#server?.ended;
  }

  signal(signal: NodeJS.Signals): void {
    this.#server?.signal(signal);
  }

  async stop(): Promise<void> {
    this.#isWanted = false;
    await this.#server?.stop();
  }

  /** Sets its wall clock. */
  async shiftClock(ms: number): Promise<void> {
    await this.#server?.ask(`clock ${ms}`);
  }

  /** The last lines of its output. */
  get printed(): readonly string[] {
    return this.#server?.printed ?? [];
  }

  async isReady(): Promise<boolean> {
    const answer = await fetch(`http://${this.host.address}:${OPS_PORT}/readyz`, {
      signal: AbortSignal.timeout(1000),
    }).catch(() => undefined);
    return answer?.ok === true;
  }

  /** A number of its own; not of the fleet. */
  async metric(name: string): Promise<number> {
    return (await Scrape.of(`http://${this.host.address}:${OPS_PORT}`)).sum(name);
  }

  /** Ids of the sandboxes that have a directory on its machine. */
  async sandboxesOnDisk(): Promise<readonly string[]> {
    if (this.#options.backend === "linux-namespaces")
      return readdir(join(this.directory, "namespaces", "sandboxes")).catch(() => []);
    const names = await readdir(this.directory);
    return names.flatMap((name) => /^coppice-([a-z0-9]+)-/.exec(name)?.[1] ?? []);
  }
}
