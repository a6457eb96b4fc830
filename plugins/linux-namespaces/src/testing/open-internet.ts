import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { PYTHON, reasonToSkip } from "./test-backend.js";

/**
 * Echo server on every address, on the port of its first argument. It answers "later" once more when another connection
 * sends "now". Whoever has sent it a datagram gets datagrams without end. As a name server it resolves every name to its second argument.
 */
const SERVER = `
import socket, sys, threading
server = socket.socket()
server.bind(("0.0.0.0", int(sys.argv[1])))
server.listen(128)
told = threading.Event()
def repeat():
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", int(sys.argv[1])))
    clients = set()
    datagrams.settimeout(0.02)
    while True:
        try:
            clients.add(datagrams.recvfrom(512)[1])
        except TimeoutError:
            for client in clients:
                datagrams.sendto(b"again", client)
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
threading.Thread(target=repeat, daemon=True).start()
print("up", flush=True)
while True:
    connection, _ = server.accept()
    threading.Thread(target=serve, args=(connection,), daemon=True).start()
`;
const PORT = 8_099;
const NETWORKS = 32;
/** Passes the opened internet to tests on a separate host, which cannot open one. */
const VARIABLE = "COPPICE_TEST_INTERNET";

/** Facts about an internet for tests. */
export interface InternetFacts {
  /** Public addresses of the server. Its name server runs on the first and answers with the second. */
  readonly addresses: readonly [string, string];
  /** A private address of the server. */
  readonly privateAddress: string;
  /** Address of this host in that network. */
  readonly hostAddress: string;
  readonly port: number;
  /** A range for sandboxes that no other test on this host uses. */
  readonly egressRange: string;
}

/** A network namespace that plays the internet, with an echo server. */
export interface Internet extends InternetFacts, AsyncDisposable {
  /** Tries to connect from there through this host; undefined where another process opened it. */
  readonly reaches?: (address: string, port: number) => boolean;
}

/** Environment that passes the internet to tests. */
export function internetVariables({
  addresses,
  privateAddress,
  hostAddress,
  port,
  egressRange,
}: InternetFacts) {
  return { [VARIABLE]: JSON.stringify({ addresses, privateAddress, hostAddress, port, egressRange }) };
}

/** Reason why sandboxes cannot be connected here; undefined when they can. */
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
 * Opens a separate internet, or returns the one that was opened for these tests.
 * @param host network namespace with its default route there; this process's unless given.
 */
export async function openInternet(host?: string): Promise<Internet> {
  const told = process.env[VARIABLE];
  if (told !== undefined) {
    return { ...(JSON.parse(told) as InternetFacts), [Symbol.asyncDispose]: () => Promise.resolve() };
  }
  const name = `coppice-test-${process.pid}`;
  const link = `cpt${process.pid}`;
  const onHost = (...words: readonly string[]): string =>
    runOnHost("ip", ...(host === undefined ? [] : ["-n", host]), ...words);
  runOnHost("ip", "netns", "add", name);
  onHost("link", "add", link, "type", "veth", "peer", "name", "out", "netns", name);
  onHost("link", "set", link, "up");
  runOnHost("ip", "-n", name, "link", "set", "out", "up");
  runOnHost("ip", "-n", name, "link", "set", "lo", "up");
  const network = takeNetwork((range, sandboxes) => {
    // Interfaces of sandboxes stay when a test is killed.
    if (onHost("route", "show", "root", sandboxes) !== "") throw new Error(`${sandboxes} is in use`);
    onHost("route", "add", range, "dev", link);
  });
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
    egressRange: rangeOfSandboxes(network),
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

/** Number of a free network: the kernel accepts each of these routes once. */
function takeNetwork(claim: (range: string, sandboxes: string) => void): number {
  for (let network = 0; network < NETWORKS; network++) {
    try {
      claim(`203.0.113.${network * 8}/29`, rangeOfSandboxes(network));
      return network;
    } catch {
      // Used by another test.
    }
  }
  throw new Error("every test network is in use: ip route, ip netns");
}

function rangeOfSandboxes(network: number): string {
  return `10.${100 + network}.0.0/16`;
}
