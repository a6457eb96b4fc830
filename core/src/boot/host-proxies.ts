/** Proxies of an environment, by the names that programs of Unix read. */
export interface HostProxies {
  readonly http_proxy?: string;
  readonly https_proxy?: string;
  /** Hosts that are asked directly. */
  readonly no_proxy?: string;
}

const NAMES = ["http_proxy", "https_proxy", "no_proxy"] as const;

/** The proxies that an environment names, in lower or upper case; the first wins. */
export function hostProxies(environment: NodeJS.ProcessEnv = process.env): HostProxies {
  const found = NAMES.flatMap((name) => {
    const value = environment[name] || environment[name.toUpperCase()];
    return value ? [[name, value] as const] : [];
  });
  return Object.fromEntries(found);
}

/** A proxy's address without its account, for people and logs. */
export function withoutAccount(address: string): string {
  const text = address.includes("://") ? address : `http://${address}`;
  if (!URL.canParse(text)) return "an address that cannot be read";
  const { protocol, host } = new URL(text);
  return `${protocol}//${host}`;
}
