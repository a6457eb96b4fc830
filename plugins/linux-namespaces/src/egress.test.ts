import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { describe, test } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import { openTestBackend, reasonToSkip } from "./testing/test-backend.js";
import { makeSandbox, runScript } from "./testing/test-sandbox.js";

const PORT = 8_099;
const SERVER = `
import socket
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", ${PORT}))
server.listen()
print("up", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"reached")
    connection.close()
`;
const CLIENT = `
import socket
connection = socket.socket()
connection.settimeout(1)
try:
    connection.connect(("ADDRESS", ${PORT}))
    print(connection.recv(99).decode())
except OSError as error:
    print(type(error).__name__)
`;

function run(program: string, ...words: string[]): string {
  return execFileSync(program, words, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
}

function skipReason(): string | undefined {
  for (const [program, ...words] of [
    ["ip", "-Version"],
    ["nft", "--version"],
    ["/usr/bin/python3", "--version"],
  ]) {
    try {
      run(program ?? "", ...words);
    } catch {
      return `egress by nat needs ${program}`;
    }
  }
  return reasonToSkip();
}

/** A network namespace that plays the internet, with a public and a private address. */
async function openInternet(): Promise<AsyncDisposable> {
  const name = `coppice-test-${process.pid}`;
  const link = `cpt${process.pid}`;
  run("ip", "netns", "add", name);
  run("ip", "link", "add", link, "type", "veth", "peer", "name", "out", "netns", name);
  run("ip", "address", "add", "203.0.113.1/24", "dev", link);
  run("ip", "link", "set", link, "up");
  run("ip", "-n", name, "address", "add", "203.0.113.2/24", "dev", "out");
  run("ip", "-n", name, "link", "set", "out", "up");
  run("ip", "-n", name, "link", "set", "lo", "up");
  run("ip", "-n", name, "address", "add", "10.9.9.9/32", "dev", "lo");
  run("ip", "route", "add", "10.9.9.9", "via", "203.0.113.2");
  const server = spawn("ip", ["netns", "exec", name, "/usr/bin/python3", "-c", SERVER], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await once(server.stdout, "data");
  return {
    async [Symbol.asyncDispose]() {
      const ended = once(server, "exit");
      server.kill("SIGKILL");
      await ended;
      run("ip", "link", "delete", link);
      run("ip", "netns", "delete", name);
    },
  };
}

async function reach(sandbox: Sandbox, address: string): Promise<string> {
  const { output } = await runScript(sandbox, `/usr/bin/python3 -c '${CLIENT.replace("ADDRESS", address)}'`);
  return output.trim();
}

void describe("the network of a sandbox with egress by nat", { skip: skipReason() ?? false }, () => {
  void test("leads out, but to no private address, no other sandbox and not to the host", async () => {
    const linksBefore = run("ip", "-brief", "link");
    {
      await using _internet = await openInternet();
      await using host = createServer((socket) => socket.end("reached")).listen(PORT, "0.0.0.0");
      await once(host, "listening");
      await using opened = await openTestBackend({ egress: "nat" });
      const [open, other, closed] = await Promise.all([
        makeSandbox(opened.backend, { allowInternetAccess: true }),
        makeSandbox(opened.backend, { allowInternetAccess: true }),
        makeSandbox(opened.backend, { allowInternetAccess: false }),
      ]);
      await other.spawn({ path: "/usr/bin/python3", args: ["-c", SERVER], env: {} });
      const { output } = await runScript(
        other,
        "cat /proc/net/fib_trie | grep -o '10\\.213\\.[0-9.]*' | sort -u",
      );
      assert.equal(await reach(open, "203.0.113.2"), "reached");
      assert.notEqual(await reach(closed, "203.0.113.2"), "reached");
      const addresses = ["10.9.9.9", "203.0.113.1", ...output.trim().split("\n")];
      assert.ok(addresses.length > 4, output);
      for (const address of addresses) assert.notEqual(await reach(open, address), "reached", address);
      await Promise.all([open.destroy(), other.destroy(), closed.destroy()]);
    }
    assert.equal(run("ip", "-brief", "link"), linksBefore);
    assert.doesNotMatch(run("nft", "list", "tables"), /coppice_/);
  });
});
