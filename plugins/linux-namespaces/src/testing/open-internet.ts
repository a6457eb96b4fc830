import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { PYTHON, reasonToSkip } from "./test-backend.js";

/**
 * Sends back what it gets, on every address and on the port of its first argument; but for "later", which it answers
 * once more when another connection says "now". As a name server it knows one
 * address, that of its second argument.
 */
const SERVER = `
import socket, sys, threading
server = socket.socket()
server.bind(("0.0.0.0", int(sys.argv[1])))
server.listen(128)
told = threading.Event()
def serve(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
            if data == b"now":
                told.set()
            if data == b"later":
                told.wait()
                connection.sendall(b"later")
    except OSError:
        pass
    connection.close()
def name():
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("0.0.0.0", 53))
    while True:
        query, client = names.recvfrom(512)
        question = query[12:query.index(0, 12) + 5]
        isAddress = question[-4:-2] == bytes([0, 1])
        head = query[:2] + bytes([0x81, 0x80, 0, 1, 0, int(isAddress), 0, 0, 0, 0])
        record = bytes([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]) + socket.inet_aton(sys.argv[2])
        names.sendto(head + question + (record if isAddress else b""), client)
threading.Thread(target=name, daemon=True).start()
print("up", flush=True)
while True:
    connection, _ = server.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
`;
const PORT = 8_099;
const NETWORKS = 32;
/** Tells tests in a host of their own of their internet, which they cannot open themselves. */
const VARIABLE = "COPPICE_TEST_INTERNET";

/** What tests have to know of an internet. */
export interface InternetFacts {
  /** Public addresses of the server. Asked for a name at the first, it answers with the second. */
  readonly addresses: readonly [string, string];
  /** A private address of the server. */
  readonly privateAddress: string;
  /** The address of this host on the way there. */
  readonly hostAddress: string;
  readonly port: number;
  /** A range for sandboxes that no other test on this host uses. */
  readonly egressRange: string;
}

/** A network namespace that plays the internet. A server in it sends back what it gets. */
export interface Internet extends InternetFacts, AsyncDisposable {
  /** Tries to connect from there, by way of this host; undefined where another process opened it. */
  readonly reaches?: (address: string, port: number) => boolean;
}

/** What tells tests of the internet that was opened for them. */
export function tellOf({ addresses, privateAddress, hostAddress, port, egressRange }: InternetFacts) {
  return { [VARIABLE]: JSON.stringify({ addresses, privateAddress, hostAddress, port, egressRange }) };
}

/** Why sandboxes cannot be connected here; undefined when they can. */
export function reasonWithoutEgress(): string | undefined {
  const isOrdinaryUser = process.getuid?.() !== 0;
  if (isOrdinaryUser && process.env[VARIABLE] === undefined)
    return "only root can open an internet for tests";
  for (const [program = "", ...words] of [
    ["ip", "-Version"],
    ["nft", "--version"],
    [PYTHON, "--version"],
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

/**
 * Opens an internet of its own, also while other tests have theirs; or takes that which was opened for these tests.
 * @param host network namespace that has the way to it, all traffic's; that of this process unless named.
 */
export async function openInternet(host?: string): Promise<Internet> {
  const told = process.env[VARIABLE];
  if (told !== undefined) {
    return { ...(JSON.parse(told) as InternetFacts), [Symbol.asyncDispose]: () => Promise.resolve() };
  }
  const name = `coppice-test-${process.pid}`;
  const link = `cpt${process.pid}`;
  const onHost = (...words: readonly string[]): void => {
    runOnHost("ip", ...(host === undefined ? [] : ["-n", host]), ...words);
  };
  runOnHost("ip", "netns", "add", name);
  onHost("link", "add", link, "type", "veth", "peer", "name", "out", "netns", name);
  onHost("link", "set", link, "up");
  runOnHost("ip", "-n", name, "link", "set", "out", "up");
  runOnHost("ip", "-n", name, "link", "set", "lo", "up");
  const network = takeNetwork((range) => onHost("route", "add", range, "dev", link));
  const address = (offset: number): string => `203.0.113.${network * 8 + offset}`;
  const privateAddress = `10.99.${network}.9`;
  onHost("address", "add", `${address(1)}/29`, "dev", link, "noprefixroute");
  for (const offset of [2, 3]) {
    runOnHost("ip", "-n", name, "address", "add", `${address(offset)}/29`, "dev", "out");
  }
  runOnHost("ip", "-n", name, "address", "add", `${privateAddress}/32`, "dev", "lo");
  onHost("route", "add", privateAddress, "via", address(2));
  if (host !== undefined) onHost("route", "add", "default", "via", address(2));
  const python = [PYTHON, "-c", SERVER, String(PORT), address(3)];
  const server = spawn("ip", ["netns", "exec", name, ...python], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await once(server.stdout, "data");
  return {
    addresses: [address(2), address(3)],
    privateAddress,
    hostAddress: address(1),
    port: PORT,
    egressRange: `10.${100 + network}.0.0/16`,
    reaches(inside, port) {
      runOnHost("ip", "-n", name, "route", "replace", inside, "via", address(1));
      const connect = `import socket; socket.create_connection(("${inside}", ${port}), 3)`;
      try {
        runOnHost("ip", "netns", "exec", name, PYTHON, "-c", connect);
        return true;
      } catch {
        return false;
      }
    },
    async [Symbol.asyncDispose]() {
      const ended = once(server, "exit");
      server.kill("SIGKILL");
      await ended;
      onHost("link", "delete", link);
      runOnHost("ip", "netns", "delete", name);
    },
  };
}

/** The number of a network that is free: the kernel takes each of these routes once. */
function takeNetwork(addRoute: (range: string) => void): number {
  for (let network = 0; network < NETWORKS; network++) {
    try {
      addRoute(`203.0.113.${network * 8}/29`);
      return network;
    } catch {
      // Another test has it.
    }
  }
  throw new Error("every test network is in use: ip route, ip netns");
}
