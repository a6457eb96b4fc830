import { messageOf, type Clock, type Finding } from "@coppice/core";
import { z } from "zod";
import { NODES, nodeOf, type NodeRecord } from "../membership/node-record.js";
import { HttpPeer, type PeerConnections, PeerRefusal } from "../routing/http-peer.js";
import type { FleetSecrets } from "../trust/fleet-secrets.js";
import type { FleetStore, StoreMember } from "../store/fleet-store.js";

export interface ExamineFleetOptions {
  readonly store: FleetStore;
  readonly secrets: FleetSecrets;
  readonly connections: PeerConnections;
  readonly connectMs: number;
  readonly leaseMs: number;
  readonly clock: Pick<Clock, "now">;
  readonly signal: AbortSignal;
}

/** The answer of a server to `/clock`. */
export const clockAnswer = z.object({ nowMs: z.number() });

const READS = 20;
/** Key that is put and removed again. */
const PROBE = "doctor/probe";
const RECOMMENDED = [3, 6] as const;
const OLDEST = [3, 4] as const;
/** Part of a lease that one answer of the store may take: a renewal is a few of them. */
const SLOW = 1 / 50;
/** Lists are by time, and so are the ends of sandboxes. */
const SKEW_MS = 500;
const TLS_ERROR = /CERT|TLS|SSL|SELF_SIGNED|VERIFY|EPROTO/;

/** What is wrong with the store, and with the way to each server of the fleet, this one too. */
export async function examineFleet(options: ExamineFleetOptions): Promise<readonly Finding[]> {
  const { store, signal } = options;
  const members = await store.members(signal);
  const findings = members.map(memberFinding);
  try {
    findings.push(await latency(options));
    const { entries } = await store.list(NODES);
    const servers = entries.flatMap((entry) => {
      const node = nodeOf(entry, options.secrets);
      return node === undefined || node.stoppedAtMs !== undefined
        ? []
        : [{ ...node, name: entry.key.slice(NODES.length) }];
    });
    findings.push(...(await Promise.all(servers.map((server) => serverFinding(server, options)))));
  } catch (error) {
    const cause = error instanceof Error && error.cause !== undefined ? `: ${messageOf(error.cause)}` : "";
    findings.push({
      severity: "fail",
      message: messageOf(error) + cause,
      fix: "start etcd, and check fleet.etcd",
    });
  }
  return findings;
}

function memberFinding({ url, version, isReady, problem }: StoreMember): Finding {
  if (version === undefined)
    return {
      severity: "warn",
      message: `etcd at ${url} does not answer: ${problem}`,
      fix: "start that member, or take it out of fleet.etcd.endpoints",
    };
  const message = `etcd ${version} at ${url}`;
  if (!isReady)
    return { severity: "fail", message: `${message} has no leader`, fix: "start the other members of etcd" };
  if (isOlder(version, OLDEST))
    return { severity: "fail", message: `${message} is too old`, fix: "install etcd 3.6 or newer" };
  if (isOlder(version, RECOMMENDED))
    return { severity: "warn", message: `${message} works`, fix: "3.6 or newer is recommended" };
  return { severity: "ok", message };
}

function isOlder(version: string, [major, minor]: readonly [number, number]): boolean {
  const [ownMajor = 0, ownMinor = 0] = version.split(".").map(Number);
  return ownMajor < major || (ownMajor === major && ownMinor < minor);
}

async function latency({ store, leaseMs }: ExamineFleetOptions): Promise<Finding> {
  const reads: number[] = [];
  const timed = async (run: () => Promise<unknown>): Promise<number> => {
    const startMs = performance.now();
    await run();
    return performance.now() - startMs;
  };
  for (let read = 0; read < READS; read += 1) reads.push(await timed(() => store.get(PROBE)));
  reads.sort((one, other) => one - other);
  const writeMs = await timed(() => store.commit([], [{ put: PROBE, value: "" }]));
  await store.commit([], [{ delete: PROBE }]);
  const [p50 = 0, p99 = 0] = [reads[Math.floor(READS / 2)], reads.at(-1)];
  const message = `the store reads in ${p50.toFixed(1)} ms (p99 ${p99.toFixed(1)} ms) and writes in ${writeMs.toFixed(1)} ms`;
  return Math.max(p99, writeMs) > leaseMs * SLOW
    ? {
        severity: "warn",
        message: `${message}, which is slow for a lease of ${leaseMs / 1000} s`,
        fix: "give etcd a disk of its own that syncs fast and a near network, or raise fleet.lease",
      }
    : { severity: "ok", message };
}

async function serverFinding(
  { name, ...node }: NodeRecord & { readonly name: string },
  { secrets, connections, connectMs, clock, signal }: ExamineFleetOptions,
): Promise<Finding> {
  const { address, secret } = node;
  if (secret === undefined)
    return {
      severity: "fail",
      message: `the record of server '${name}' at ${address} is proven by none of this one's secrets: it is not used`,
      fix: `set the same fleet.secret on all servers; where '${name}' is none of them, somebody else writes to the store`,
    };
  const onFailure = (): void => undefined;
  const peer = new HttpPeer({
    node: name,
    server: { ...node, secret },
    secrets,
    connections,
    connectMs,
    onFailure,
  });
  const limit = AbortSignal.any([signal, AbortSignal.timeout(connectMs)]);
  const server = `server '${name}' at ${address}`;
  const startedAtMs = clock.now();
  try {
    const { nowMs } = clockAnswer.parse(await peer.ask("/clock", {}, limit));
    const endedAtMs = clock.now();
    const skewMs = nowMs - (startedAtMs + endedAtMs) / 2;
    const tookMs = endedAtMs - startedAtMs;
    if (Math.abs(skewMs) - tookMs / 2 <= SKEW_MS)
      return { severity: "ok", message: `${server} answers in ${tookMs} ms, and its clock agrees` };
    const ahead = `${(Math.abs(skewMs) / 1000).toFixed(1)} s ${skewMs > 0 ? "ahead of" : "behind"}`;
    return {
      severity: "warn",
      message: `the clock of ${server} is ${ahead} this one`,
      fix: "run an NTP client such as chrony on both hosts",
    };
  } catch (error) {
    return { severity: "fail", ...failureOf(error, server) };
  }
}

function failureOf(error: unknown, server: string): Pick<Finding, "message" | "fix"> {
  if (error instanceof PeerRefusal && error.status === 401)
    return { message: `${server} has another secret`, fix: "set the same fleet.secret on all servers" };
  if (error instanceof PeerRefusal)
    return {
      message: `${server} answered ${error.status}`,
      fix: "look at its log: it may have lost its place, run another version, or have another program at that address",
    };
  const code = (error as NodeJS.ErrnoException).code ?? "";
  if (TLS_ERROR.test(code))
    return {
      message: `${server} has a certificate or a protocol that this one does not take: ${messageOf(error).trim()}`,
      fix: "set fleet.ca to the authority of its certificate, and its fleet.address to a name in it, with http or https as its listener has it",
    };
  return {
    message: `${server} cannot be reached: ${messageOf(error)}`,
    fix: "check its fleet.address, and the firewalls and routes between both hosts",
  };
}
