import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { reasonToSkip } from "./test-backend.js";

/** Sends back what it gets, on every address and on the port of its argument. */
const SERVER = `
import socket, sys, threading
server = socket.socket()
server.bind(("0.0.0.0", int(sys.argv[1])))
server.listen(128)
def serve(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError:
        pass
    connection.close()
print("up", flush=True)
while True:
    connection, _ = server.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
`;
const PORT = 8_099;
const NETWORKS = 32;

/** A network namespace that plays the internet. A server in it sends back what it gets. */
export interface Internet extends AsyncDisposable {
  /** Public addresses of the server. */
  readonly addresses: readonly [string, string];
  /** A private address of the server. */
  readonly privateAddress: string;
  /** The address of this host on the way there. */
  readonly hostAddress: string;
  readonly port: number;
  /** A range for sandboxes that no other test on this host uses. */
  readonly egressRange: string;
}

/** Why sandboxes cannot be connected here; undefined when they can. */
export function reasonWithoutEgress(): string | undefined {
  for (const [program = "", ...words] of [
    ["ip", "-Version"],
    ["nft", "--version"],
    ["/usr/bin/python3", "--version"],
  ]) {
    try {
      runOnHost(program, ...words);
    } catch {
      return `egress by nat needs ${program}`;
    }
  }
  return reasonToSkip();
}

/** Runs a program of the host. @returns its output. @throws when it fails. */
function runOnHost(program: string, ...words: readonly string[]): string {
  return execFileSync(program, words, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
}

/** Opens an internet of its own, also while other tests have theirs. */
export async function openInternet(): Promise<Internet> {
  const name = `coppice-test-${process.pid}`;
  const link = `cpt${process.pid}`;
  runOnHost("ip", "netns", "add", name);
  runOnHost("ip", "link", "add", link, "type", "veth", "peer", "name", "out", "netns", name);
  runOnHost("ip", "link", "set", link, "up");
  runOnHost("ip", "-n", name, "link", "set", "out", "up");
  runOnHost("ip", "-n", name, "link", "set", "lo", "up");
  const network = takeNetwork(link);
  const address = (offset: number): string => `203.0.113.${network * 8 + offset}`;
  const privateAddress = `10.99.${network}.9`;
  runOnHost("ip", "address", "add", `${address(1)}/29`, "dev", link, "noprefixroute");
  for (const offset of [2, 3]) {
    runOnHost("ip", "-n", name, "address", "add", `${address(offset)}/29`, "dev", "out");
  }
  runOnHost("ip", "-n", name, "address", "add", `${privateAddress}/32`, "dev", "lo");
  runOnHost("ip", "route", "add", privateAddress, "via", address(2));
  const server = spawn("ip", ["netns", "exec", name, "/usr/bin/python3", "-c", SERVER, String(PORT)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await once(server.stdout, "data");
  return {
    addresses: [address(2), address(3)],
    privateAddress,
    hostAddress: address(1),
    port: PORT,
    egressRange: `10.${100 + network}.0.0/16`,
    async [Symbol.asyncDispose]() {
      const ended = once(server, "exit");
      server.kill("SIGKILL");
      await ended;
      runOnHost("ip", "link", "delete", link);
      runOnHost("ip", "netns", "delete", name);
    },
  };
}

/** The number of a network that is free: the kernel takes each of these routes once. */
function takeNetwork(link: string): number {
  for (let network = 0; network < NETWORKS; network++) {
    try {
      runOnHost("ip", "route", "add", `203.0.113.${network * 8}/29`, "dev", link);
      return network;
    } catch {
      // Another test has it.
    }
  }
  throw new Error("every test network is in use: ip route, ip netns");
}
