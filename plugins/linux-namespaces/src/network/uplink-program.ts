import { constants } from "node:fs/promises";
import { basename } from "node:path";
import { canAccess } from "../launcher/can-access.js";
import { findHostProgram } from "../launcher/host-program.js";

/** A program that relays traffic of a network namespace over its own sockets, without privileges. */
export interface UplinkProgram {
  /** Full path on this host. */
  readonly path: string;
  /** Arguments that give a namespace an interface with an address and a default route. */
  arguments(link: UplinkLink): readonly string[];
}

export interface UplinkLink {
  /** A process in the network namespace and in the user namespace that owns it. */
  readonly pid: number;
  /** Name of the interface. */
  readonly name: string;
  /** First three bytes of the addresses, as in `10.213.255`. The namespace gets `.100`, the program `.2`. */
  readonly prefix: string;
}

const MTU = 1_500;
const TUN = "/dev/net/tun";

// Options that allow outgoing traffic alone: no port of the host is forwarded or mapped, and no address stands for the
// host.
const PASTA_OPTIONS = [
  "--foreground",
  "--ipv4-only",
  "--config-net",
  "--no-netns-quit",
  "--no-map-gw",
  "--tcp-ports=none",
  "--udp-ports=none",
  "--tcp-ns=none",
  "--udp-ns=none",
  "--dns=none",
  "--no-dhcp",
  "--no-dhcpv6",
  "--no-ndp",
  "--no-ra",
  "--netmask=24",
  `--mtu=${MTU}`,
];
const SLIRP_OPTIONS = [
  "--configure",
  "--disable-host-loopback",
  "--disable-dns",
  "--enable-sandbox",
  "--enable-seccomp",
  "--netns-type=path",
  `--mtu=${MTU}`,
];
const PROGRAMS: Readonly<Record<string, UplinkProgram["arguments"]>> = {
  pasta: ({ pid, name, prefix }) => [
    ...PASTA_OPTIONS,
    `--address=${prefix}.100`,
    `--gateway=${prefix}.2`,
    `--ns-ifname=${name}`,
    `--userns=/proc/${pid}/ns/user`,
    `--netns=/proc/${pid}/ns/net`,
  ],
  slirp4netns: ({ pid, name, prefix }) => [
    ...SLIRP_OPTIONS,
    `--cidr=${prefix}.0/24`,
    `--userns-path=/proc/${pid}/ns/user`,
    `/proc/${pid}/ns/net`,
    name,
  ],
};

/**
 * Finds the configured program, or the first that this host has.
 * @param configured full path.
 * @throws Error with what is missing.
 */
export async function findUplinkProgram(configured: string | undefined): Promise<UplinkProgram> {
  const path = configured ?? (await findHostProgram(Object.keys(PROGRAMS)));
  if (path === undefined || !(await canAccess(path, constants.X_OK))) {
    throw new Error(
      `egress: nat without root needs ${configured ?? "the program pasta or slirp4netns"}, which this host does not have`,
    );
  }
  const build = PROGRAMS[basename(path)];
  if (build === undefined) throw new Error(`egressProgram: ${path} is neither pasta nor slirp4netns`);
  const canMakeInterfaces = await canAccess(TUN, constants.R_OK | constants.W_OK);
  if (!canMakeInterfaces)
    throw new Error(`egress: nat without root needs ${TUN}, which this user cannot open`);
  return { path, arguments: build };
}
