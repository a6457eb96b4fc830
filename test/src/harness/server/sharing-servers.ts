import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type DockerRegistry, openDockerRegistry } from "@coppice/core/testing";
import { type Cluster, startEtcd } from "@coppice/plugin-fleet/testing";
import { makeFleetInstallations } from "./fleet-installations.js";
import { type ImageHub, openImageHub } from "./image-hub.js";
import { type Installation, ServerProcess } from "./server-process.js";

/** Servers of a fleet, each a process of its own, with `linux-namespaces` and a registry for their templates. */
export class SharingServers implements AsyncDisposable {
  readonly processes: ServerProcess[] = [];
  readonly #installations: readonly Installation[];
  readonly #etcd: Cluster;
  readonly #rest: readonly AsyncDisposable[];

  private constructor(
    installations: readonly Installation[],
    etcd: Cluster,
    rest: readonly AsyncDisposable[],
  ) {
    this.#installations = installations;
    this.#etcd = etcd;
    this.#rest = rest;
  }

  /** @param lease how long a server that was killed has to come back before its sandboxes are lost. */
  static async start({ lease = "4s", count = 2, sandboxes = {} } = {}): Promise<SharingServers> {
    const hub: ImageHub = await openImageHub(["library/small:latest"]);
    const registry: DockerRegistry = await openDockerRegistry();
    const etcd = await startEtcd();
    const registries = hub.registries as { readonly insecure: readonly string[] };
    const installations = await makeFleetInstallations({
      count,
      fleet: { etcd: { endpoints: etcd.endpoints }, lease },
      config: { sandboxes: { defaultBackend: "linux-namespaces", ...sandboxes } },
      plugins: (directory) => ({
        "jupyter": undefined,
        "local-process": undefined,
        "linux-namespaces": { directory: join(directory, "namespaces") },
        "templates": {
          registries: { ...registries, insecure: [...registries.insecure, registry.address] },
          sharing: { registry: `${registry.address}/fleet`, interval: "500ms" },
        },
      }),
    });
    const servers = new SharingServers(installations, etcd, [etcd, registry, hub]);
    for (const { configFile } of installations) servers.processes.push(await ServerProcess.start(configFile));
    return servers;
  }

  url(index: number): string {
    return this.processes[index]?.url ?? "";
  }

  configFile(index: number): string {
    return this.#installations[index]?.configFile ?? "";
  }

  dataDirectory(index: number): string {
    return join(this.#installations[index]?.directory ?? "", "data");
  }

  async kill(index: number): Promise<void> {
    this.processes[index]?.signal("SIGKILL");
    await this.processes[index]?.ended;
  }

  async restart(index: number): Promise<void> {
    this.processes[index] = await ServerProcess.start(this.configFile(index));
  }

  /** Lays settings over those of the plugin `fleet` of a server, for its next start. */
  async configure(index: number, settings: object): Promise<void> {
    const file = this.configFile(index);
    const config = JSON.parse(await readFile(file, "utf8")) as {
      readonly plugins: { readonly fleet: object };
    };
    Object.assign(config.plugins.fleet, settings);
    await writeFile(file, JSON.stringify(config));
  }

  /** Values of the fleet's store with a prefix. */
  async values(prefix: string): Promise<readonly string[]> {
    const base64 = (text: string): string => Buffer.from(text).toString("base64");
    const body = { key: base64(`/coppice/${prefix}`), range_end: base64(`/coppice/${prefix}~`) };
    const asked = { method: "POST", body: JSON.stringify(body) };
    const answer = await fetch(`${this.#etcd.endpoints[0]}/v3/kv/range`, asked);
    const { kvs = [] } = (await answer.json()) as { readonly kvs?: readonly { readonly value: string }[] };
    return kvs.map(({ value }) => Buffer.from(value, "base64").toString());
  }

  async stop(): Promise<void> {
    for (const one of this.processes.splice(0)) await one.stop();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
    for (const installation of this.#installations) await installation.remove();
    for (const one of this.#rest) await one[Symbol.asyncDispose]();
  }
}
