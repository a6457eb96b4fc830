import type { LookupFunction } from "node:net";
import { TargetGuard } from "@coppice/core";
import type { TemplatesConfig } from "../templates-config.js";
import type { ImageReference } from "./image-reference.js";
import { RegistryProxy } from "./registry-proxy.js";

/** A repository, at the registry or at its mirror. */
export interface Repository {
  /** `https://registry.example.com/v2/library/debian/` */
  readonly url: URL;
  readonly isMirror: boolean;
}

export interface RegistrySettings extends Readonly<TemplatesConfig["registries"]> {
  /** Place with the templates of all tenants: `registry.example.com/coppice`. */
  readonly reserved?: string;
}

/** A registry that the operator's settings close. The message is for the client. */
export class RegistryRefused extends Error {
  override readonly name = "RegistryRefused";
}

const DOCKER_HUB = "registry-1.docker.io";

/**
 * The registries that builds may reach. Their clients choose hosts, and a registry may send a request on to another:
 * only hosts with public addresses are connected to, and those that the operator named.
 */
export class RegistryAccess {
  readonly #settings: RegistrySettings;
  readonly #guard = new TargetGuard([]);
  readonly #private: ReadonlySet<string>;
  /** Hosts of mirrors, which are private for what they stand for alone. */
  readonly #mirrors: ReadonlySet<string>;
  readonly proxy: RegistryProxy;

  constructor(settings: RegistrySettings, environment?: NodeJS.ProcessEnv) {
    this.#settings = settings;
    this.proxy = new RegistryProxy(settings, environment);
    this.#private = new Set(settings.private);
    this.#mirrors = new Set(Object.values(settings.mirrors).map((mirror) => mirror.replace(/\/.*$/, "")));
  }

  /**
   * Returns where a repository is asked for. Credentials are for the registry itself, so with them a mirror is not used.
   * @param options `writes` for a push, which may not change what others pull by a mirror.
   * @throws RegistryRefused
   */
  find(
    { registry, repository }: ImageReference,
    { hasCredentials, writes = false }: { readonly hasCredentials: boolean; readonly writes?: boolean },
  ): Repository {
    const { allowed, mirrors, reserved } = this.#settings;
    if (allowed !== undefined && !allowed.includes(registry))
      throw new RegistryRefused(`this server does not pull from '${registry}'`);
    const mirror = hasCredentials || writes ? undefined : mirrors[registry];
    const url = this.#urlOf(`${mirror ?? registry}/${repository}/`);
    // As they are connected to: with a port that goes without saying, or by a mirror, names differ.
    const isWithin = (place: string): boolean => {
      const { host, pathname } = this.#urlOf(`${place}/`);
      return url.host === host && url.pathname.startsWith(pathname);
    };
    if (reserved !== undefined && isWithin(reserved))
      throw new RegistryRefused(`'${reserved}' is for the servers of this fleet`);
    for (const [name, place] of writes ? Object.entries(mirrors) : [])
      if (isWithin(place))
        throw new RegistryRefused(`'${place}' stands for '${name}' on this server, and is not pushed to`);
    return { url, isMirror: mirror !== undefined };
  }

  /**
   * Decides on a connection.
   * @param from the repository that a redirect or a realm was found at.
   * @returns a function for the connection's name lookup; undefined for one without rules, or through the proxy.
   * @throws RegistryRefused
   */
  async check(url: URL, { url: from, isMirror }: Repository): Promise<LookupFunction | undefined> {
    if (url.protocol !== "https:" && (url.protocol !== "http:" || from.protocol !== "http:"))
      throw new RegistryRefused(`'${from.host}' leads to '${url.protocol}//${url.host}', which is not HTTPS`);
    const isPrivate = ({ host }: URL): boolean =>
      this.#private.has(host) || (isMirror && this.#mirrors.has(host));
    // A public registry, which its client chooses, has no say over private ones.
    if (isPrivate(url) && isPrivate(from)) return undefined;
    if (!this.#guard.permitsHost(url.hostname)) throw this.#notPublic(url);
    if (this.proxy.isFor(url)) {
      await this.#checkName(url);
      return undefined;
    }
    return (hostname, options, callback) =>
      this.#guard.lookup(hostname, options, (error, ...found) =>
        callback(error === null ? null : this.#notPublic(url), ...found),
      );
  }

  /** Refuses a name that is known to be private here; the proxy decides on those that are unknown. */
  async #checkName(url: URL): Promise<void> {
    const found = await this.#guard.resolve(url.hostname);
    if (!this.#guard.permitsAll(found.map(({ address }) => address))) throw this.#notPublic(url);
  }

  /** @param place a host and a path: `docker.io/library/debian/` */
  #urlOf(place: string): URL {
    const slash = place.indexOf("/");
    const named = place.slice(0, slash);
    const host = named === "docker.io" ? DOCKER_HUB : named;
    const scheme = this.#settings.insecure.includes(host) ? "http" : "https";
    return new URL(`${scheme}://${host}/v2${place.slice(slash)}`);
  }

  #notPublic({ host }: URL): RegistryRefused {
    return new RegistryRefused(
      `'${host}' has no public address that this server can find, and is not in the setting templates.registries.private`,
    );
  }
}
