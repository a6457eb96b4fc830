/** Hosts with pfctl(8) of each release: they differ in what becomes of an anchor. */
export const NETWORK_HOSTS = [{ release: 15 }, { release: 14 }] as const;

/** A host whose sandboxes have no network; pfctl(8) is not used. */
export const UNCONNECTED_HOST = { isConnected: false } as const;

/** True when everything runs on each host, not only what differs there. */
export const ALL_VARIANTS = process.env["COPPICE_TEST_VARIANTS"] === "all";

/** For the title of a test. */
export function hostTitle(host: (typeof NETWORK_HOSTS)[number] | typeof UNCONNECTED_HOST): string {
  return "isConnected" in host ? "no network" : `pfctl(8) of ${host.release}`;
}
