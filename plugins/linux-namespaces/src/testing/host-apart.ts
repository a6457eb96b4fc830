import { execFileSync, spawnSync } from "node:child_process";
import { constants } from "node:fs";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openInternet, internetVariables } from "./open-internet.js";
import type { Place } from "./test-apart.js";

/**
 * Binds a world-writable /dev/net/tun, which this host may reserve for root; and gives the host an address when it is
 * written to a pipe.
 */
const SET_UP = `
mknod -m 666 "$0/tun" c 10 200
mount --bind "$0/tun" /dev/net/tun
mkfifo -m 666 "$0/more"
(read line < "$0/more" && ip address add "$line" dev lo) > /dev/null &
exec "$@"
`;
const UPLINK_PROGRAMS = { pasta: "passt", slirp4netns: "slirp4netns" } as const;

/** A test environment (`Place`) with a separate network, removed on dispose. */
export interface HostApart extends AsyncDisposable {
  readonly place: Place;
}

/** Reason why the uplink of an ordinary user cannot be tested here; undefined when it can. */
export function reasonWithoutUplink(program: keyof typeof UPLINK_PROGRAMS): string | undefined {
  if (spawnSync(`/usr/bin/${program}`, ["--help"]).error !== undefined) {
    return `the program ${program} is missing (apt: ${UPLINK_PROGRAMS[program]})`;
  }
  if (spawnSync("test", ["-c", "/dev/net/tun"]).status !== 0) return "there is no /dev/net/tun";
  return undefined;
}

/**
 * Gives a place a separate network with a test internet. The host there gets one address that a test writes to the pipe
 * in COPPICE_TEST_ADDRESSES.
 */
export async function openHostApart(place: Place): Promise<HostApart> {
  const name = `coppice-host-${process.pid}`;
  const directory = await mkdtemp(join(tmpdir(), "coppice-host-"));
  execFileSync("ip", ["netns", "add", name]);
  execFileSync("ip", ["-n", name, "link", "set", "lo", "up"]);
  const internet = await openInternet(name);
  // Not with `ip netns exec`, which mounts a /sys without control groups.
  const enter = ["nsenter", `--net=/run/netns/${name}`, "unshare", "--mount", "/bin/sh", "-ec"] as const;
  await chmod(directory, 0o755);
  const words = [SET_UP, directory];
  const pipe = join(directory, "more");
  const env = { ...place.env, ...internetVariables(internet), COPPICE_TEST_ADDRESSES: pipe };
  return {
    place: { ...place, enter: [...enter, ...words, ...place.enter], env },
    async [Symbol.asyncDispose]() {
      // Ends a waiting reader; without one, open(2) fails at once.
      const writeAtOnce = constants.O_WRONLY | constants.O_NONBLOCK;
      await writeFile(pipe, "", { flag: writeAtOnce }).catch(() => undefined);
      await internet[Symbol.asyncDispose]();
      execFileSync("ip", ["netns", "delete", name]);
      await rm(directory, { recursive: true });
    },
  };
}
