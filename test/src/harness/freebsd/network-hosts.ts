/** Every kind of network with pfctl(8) of each release: they differ in what becomes of an anchor. */
export const NETWORK_HOSTS = [
  { networkKind: "vnet", release: 15 },
  { networkKind: "vnet", release: 14 },
  { networkKind: "alias", release: 15 },
  { networkKind: "alias", release: 14 },
] as const;

/** For the title of a test. */
export function hostTitle({ networkKind, release }: (typeof NETWORK_HOSTS)[number]): string {
  return `${networkKind}, pfctl(8) of ${release}`;
}
