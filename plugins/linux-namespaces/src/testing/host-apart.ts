import { execFileSync, spawnSync } from "node:child_process";
import { constants } from "node:fs";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openInternet, tellOf } from "./open-internet.js";
import type { Place } from "./test-apart.js";

/**
 * Binds a device over what this host has, where it may be for root alone, which is not how hosts are set up; and
 * gives the host an address when somebody writes to a pipe.
 */
const SET_UP = `
mknod -m 666 "$0/tun" c 10 200
mount --bind "$0/tun" /dev/net/tun
mkfifo -m 666 "$0/more"
(read line < "$0/more" && ip address add "$line" dev lo) > /dev/null &
exec "$@"
`;
const UPLINK_PROGRAMS = { pasta: "passt", slirp4netns: "slirp4netns" } as const;

/** A place with a network of its own, to be taken down again. */
export interface HostApart extends AsyncDisposable {
  readonly place: Place;
}

/** Why an ordinary user cannot be let out here by a program; undefined when it can. */
export function reasonWithoutUplink(program: keyof typeof UPLINK_PROGRAMS): string | undefined {
  if (spawnSync(`/usr/bin/${program}`, ["--help"]).error !== undefined) {
    return `the program ${program} is missing (apt: ${UPLINK_PROGRAMS[program]})`;
  }
  if (spawnSync("test", ["-c", "/dev/net/tun"]).status !== 0) return "there is no /dev/net/tun";
  return undefined;
}

/**
 * Gives a place a network of its own, whose way out leads to an internet for tests. What is written to the pipe that
 * COPPICE_TEST_ADDRESSES names becomes an address of that host, once.
 */
export async function openHostApart(place: Place): Promise<HostApart> {
  const name = `coppice-host-${process.pid}`;
  const directory = await mkdtemp(join(tmpdir(), "coppice-host-"));
  execFileSync("ip", ["netns", "add", name]);
  execFileSync("ip", ["-n", name, "link", "set", "lo", "up"]);
  const internet = await openInternet(name);
  // Not by `ip netns exec`, which mounts a /sys without control groups.
  const enter = ["nsenter", `--net=/run/netns/${name}`, "unshare", "--mount", "/bin/sh", "-ec"] as const;
  await chmod(directory, 0o755);
  const words = [SET_UP, directory];
  const pipe = join(directory, "more");
  const env = { ...place.env, ...tellOf(internet), COPPICE_TEST_ADDRESSES: pipe };
  return {
    place: { ...place, enter: [...enter, ...words, ...place.enter], env },
    async [Symbol.asyncDispose]() {
      // Ends who still waits for it; where nobody does, there is nobody to open it for.
      const writeAtOnce = constants.O_WRONLY | constants.O_NONBLOCK;
      await writeFile(pipe, "", { flag: writeAtOnce }).catch(() => undefined);
      await internet[Symbol.asyncDispose]();
      execFileSync("ip", ["netns", "delete", name]);
      await rm(directory, { recursive: true });
    },
  };
}
