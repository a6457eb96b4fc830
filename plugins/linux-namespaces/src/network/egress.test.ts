import assert from "node:assert/strict";
import { once } from "node:events";
import { rm } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { describe, it } from "node:test";
import { ALL_TRAFFIC, type Sandbox } from "@coppice/core/backend";
import { eventually } from "@coppice/core/testing";
import { type Internet, openInternet, reasonWithoutEgress } from "../testing/open-internet.js";
import { openTestBackend, type TestBackend } from "../testing/test-backend.js";
import { makeSandbox, reach, runScript } from "../testing/test-sandbox.js";

const SERVER = `
import socket, sys
server = socket.socket()
server.bind(("0.0.0.0", int(sys.argv[1])))
server.listen()
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(1))
    connection.close()
`;
/** Prints the ways out with IPv6 that root of a sandbox can create. */
const VERSION_6 = `
import os, socket, subprocess
for line in open("/proc/net/ipv6_route"):
    fields = line.split()
    if fields[9] == "eth0" and not fields[0].startswith(("fe80", "ff00")):
        print("route", line)
for command in ("ip -6 address add 2001:db8::2/64 dev eth0", "ip -6 route add default dev eth0"):
    if subprocess.run(command.split(), stderr=subprocess.DEVNULL).returncode == 0:
        print("may", command)
connection = socket.socket(socket.AF_INET6)
connection.settimeout(1)
try:
    connection.connect(("2001:db8::1", 80))
    print("reached")
except OSError:
    pass
`;
/** Reports whether the other end of an open connection still sends. */
const WAIT_FOR_MORE = `
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b"later")
connection.recv(5)
open("/tmp/waiting", "w").close()
connection.settimeout(5)
try:
    print("more" if connection.recv(5) else "nothing")
except OSError:
    print("nothing")
`;
/** Sends a datagram from a port, if told to whom, and prints what comes there. */
const DATAGRAMS = `
import socket, sys
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
port.bind(("0.0.0.0", 7000))
port.settimeout(2)
if len(sys.argv) > 1:
    port.sendto(b"x", (sys.argv[1], int(sys.argv[2])))
try:
    print(port.recv(16).decode())
except TimeoutError:
    print("nothing")
`;
/** Begins a thousand connections, as connection tracking sees them. */
const FLOOD = `
import socket, sys
port = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(20000, 21000):
    try: port.sendto(b"x", (sys.argv[1], number))
    except OSError: pass
`;
const closed = { allowOut: [], denyOut: [ALL_TRAFFIC] };

async function open(internet: Internet, settings: object = {}): Promise<TestBackend> {
  return openTestBackend({ egress: "nat", egressRange: internet.egressRange, ...settings });
}

describe("the network of a sandbox with egress: nat", { skip: reasonWithoutEgress() ?? false }, () => {
  it("leads out, but to no private address, no other sandbox and not to the host", async () => {
    await using internet = await openInternet();
    const { port } = internet;
    const [outside] = internet.addresses;
    await using host = createServer((socket) => socket.end("x")).listen(port, "0.0.0.0");
    await once(host, "listening");
    await using opened = await open(internet);
    const [free, other, shut, allowed] = await Promise.all([
      makeSandbox(opened.backend, { allowInternetAccess: true }),
      makeSandbox(opened.backend, { allowInternetAccess: true }),
      makeSandbox(opened.backend, { allowInternetAccess: false }),
      makeSandbox(opened.backend, {
        allowInternetAccess: true,
        // An allowed destination does not open one that is blocked for all.
        egress: { allowOut: ["10.0.0.0/8", internet.hostAddress, "0.0.0.0/0"], denyOut: [] },
      }),
    ]);
    await other.spawn({ path: "/usr/local/bin/python3", args: ["-c", SERVER, String(port)], env: {} });
    const { output } = await runScript(
      other,
      "grep -o '|-- 10[.][0-9.]*' /proc/net/fib_trie | cut -c 5- | sort -u",
    );
    const neighbours = output.trim().split("\n");
    assert.ok(neighbours.length > 2, output);
    assert.equal(await reach(other, outside, port), "reached");
    assert.equal(await reach(allowed, outside, port), "reached");
    assert.notEqual(await reach(shut, outside, port), "reached");
    const attempts = [internet.privateAddress, internet.hostAddress, ...neighbours].flatMap((address) =>
      [allowed, free].map(async (sandbox) => {
        assert.notEqual(await reach(sandbox, address, port), "reached", address);
      }),
    );
    await Promise.all(attempts);
    await Promise.all([free, other, shut, allowed].map((sandbox) => sandbox.destroy()));
    assert.deepEqual(await opened.leaks(), []);
  });

  it("leads to a blocked service that one sandbox may reach, and no further", async () => {
    await using internet = await openInternet();
    const { port } = internet;
    await using opened = await open(internet);
    const reaches = [{ address: internet.privateAddress, port }];
    const first = await makeSandbox(opened.backend, { allowInternetAccess: true, reaches });
    const other = await makeSandbox(opened.backend, { allowInternetAccess: true });
    const shut = await makeSandbox(opened.backend, { allowInternetAccess: false, reaches });
    assert.equal(await reach(first, internet.privateAddress, port), "reached");
    assert.notEqual(await reach(first, internet.privateAddress, 53), "reached");
    assert.notEqual(await reach(first, internet.hostAddress, port), "reached");
    for (const each of [other, shut])
      assert.notEqual(await reach(each, internet.privateAddress, port), "reached");
    await Promise.all([first, other, shut].map((sandbox) => sandbox.destroy()));
    assert.deepEqual(await opened.leaks(), []);
  });

  it("does not lead in", async (context) => {
    await using internet = await openInternet();
    const { reaches, port, addresses } = internet;
    if (reaches === undefined) return context.skip("only root can connect from the other side");
    await using opened = await open(internet);
    const sandbox = await makeSandbox(opened.backend, { allowInternetAccess: true });
    await sandbox.spawn({ path: "/usr/local/bin/python3", args: ["-c", SERVER, String(port)], env: {} });
    const own = `python3 -c 'import socket
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect(("${addresses[0]}", 1))
print(probe.getsockname()[0])'`;
    const address = (await runScript(sandbox, own)).output.trim();
    assert.match(address, /^10\./);
    await eventually("it listens", async () => (await reach(sandbox, address, port)) === "reached");
    assert.equal(reaches(address, port), false);
    await sandbox.destroy();
  });

  it("leads to name servers", async () => {
    await using internet = await openInternet();
    const [nameserver, named] = internet.addresses;
    await using opened = await open(internet, { nameservers: [nameserver] });
    const sandbox = await makeSandbox(opened.backend, { allowInternetAccess: true });
    const lookUp = `python3 -c 'import socket; print(socket.gethostbyname("name.example"))'`;
    assert.equal((await runScript(sandbox, lookUp)).output, `${named}\n`);
    await sandbox.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  it("has no way out with IPv6, whatever root in it does", async () => {
    await using internet = await openInternet();
    await using opened = await open(internet);
    const sandbox = await makeSandbox(opened.backend, { allowInternetAccess: true });
    const { exit, output } = await runScript(sandbox, `python3 -c '${VERSION_6}'`, "root");
    assert.deepEqual({ exit, output }, { exit: { code: 0 }, output: "" });
    await sandbox.destroy();
  });

  it("keeps its rules without a server, at the start of the next one, and after adoption", async () => {
    await using internet = await openInternet();
    const { port } = internet;
    const [allowed, denied] = internet.addresses;
    await using opened = await open(internet);
    const made = await makeSandbox(opened.backend, {
      allowInternetAccess: true,
      egress: { allowOut: [], denyOut: [denied] },
    });
    assert.equal(await reach(made, allowed, port), "reached");
    const attempts = `
import socket, time
while True:
    try:
        socket.create_connection(("${denied}", ${port}), 0.2).close()
        open("/home/user/reached", "a").write("x")
    except OSError:
        open("/home/user/tried", "a").write("x")
    time.sleep(0.002)
`;
    const program = {
      path: "/usr/local/bin/python3",
      args: ["-c", attempts],
      env: {},
      input: "none",
    } as const;
    await made.spawn(program);
    await opened.backend.close();
    const [again] = await opened.backend.recover();
    assert.ok(again);
    const { output } = await runScript(again, "cat ~/tried | wc -c; ls ~");
    assert.ok(Number.parseInt(output, 10) > 0, "it did not try");
    assert.doesNotMatch(output, /reached/);
    assert.equal(await reach(again, allowed, port), "reached");
    assert.notEqual(await reach(again, denied, port), "reached");
    await again.networking?.restrict(closed);
    assert.notEqual(await reach(again, allowed, port), "reached");
    await again.destroy();
    assert.deepEqual(await opened.leaks(), []);
  });

  it("is removed with its rules when its server ended during the creation", async () => {
    await using internet = await openInternet();
    await using opened = await open(internet);
    const doomed = await makeSandbox(opened.backend, { allowInternetAccess: true, egress: closed });
    const late = await makeSandbox(opened.backend, { allowInternetAccess: false });
    await late.networking?.restrict({ allowOut: internet.addresses, denyOut: [ALL_TRAFFIC] });
    assert.notDeepEqual(await opened.leaks(), []);
    await opened.backend.close();
    for (const { id } of [doomed, late]) await rm(join(opened.directory, "sandboxes", id, "agent.sock"));
    assert.deepEqual(await opened.backend.recover(), []);
    assert.deepEqual(await opened.leaks(), []);
  });

  it("is exclusive: another server with the same range does not start", async (context) => {
    if (process.getuid?.() !== 0) return context.skip("without root each has a network of its own");
    await using internet = await openInternet();
    await using opened = await open(internet);
    await using second = await open(internet);
    const sandbox = await makeSandbox(opened.backend, { allowInternetAccess: true });
    const refused = { code: "unavailable", message: /egressRange 10\.\d+\.0\.0\/16 is used by/ };
    await assert.rejects(second.backend.check(), refused);
    // Its server released it, but its sandbox still uses it.
    await opened.backend.close();
    await assert.rejects(second.backend.check(), { ...refused, message: /used by the interface cp/ });
    const [again] = await opened.backend.recover();
    assert.equal(again?.id, sandbox.id);
    await again?.destroy();
    await opened.backend.close();
    await second.backend.check();
  });

  it("cuts a connection that is open when its other end is denied, in both directions", async () => {
    await using internet = await openInternet();
    await using opened = await open(internet);
    const { port } = internet;
    const [denied] = internet.addresses;
    const make = () => makeSandbox(opened.backend, { allowInternetAccess: true });
    const [sandbox, other] = await Promise.all([make(), make()]);
    const waiting = runScript(sandbox, `python3 -c '${WAIT_FOR_MORE}' ${denied} ${port}`);
    const { exit } = await runScript(sandbox, "until [ -e /tmp/waiting ]; do sleep 0.05; done");
    assert.deepEqual(exit, { code: 0 });
    await sandbox.networking?.restrict({ allowOut: [], denyOut: [denied] });
    const now = `import socket; c = socket.create_connection(("${denied}", ${port})); c.sendall(b"now"); c.recv(3)`;
    assert.deepEqual((await runScript(other, `python3 -c '${now}'`)).exit, { code: 0 });
    assert.equal((await waiting).output, "nothing\n");
    await Promise.all([sandbox.destroy(), other.destroy()]);
    assert.deepEqual(await opened.leaks(), []);
  });

  it("lets no sandbox fill the kernel's table of connections, nor use up what another one may have", async () => {
    await using internet = await openInternet();
    await using opened = await open(internet, { egressConnections: 64 });
    const [address] = internet.addresses;
    const make = () => makeSandbox(opened.backend, { allowInternetAccess: true });
    const [flooding, other] = await Promise.all([make(), make()]);
    assert.equal(await reach(flooding, address, internet.port), "reached");
    await runScript(flooding, `python3 -c '${FLOOD}' ${address}`);
    assert.notEqual(await reach(flooding, address, internet.port), "reached");
    assert.equal(await reach(other, address, internet.port), "reached");
    await Promise.all([flooding.destroy(), other.destroy()]);
    assert.deepEqual(await opened.leaks(), []);
  });

  it("passes nothing of a former sandbox's connections on to the next one at its address", async () => {
    await using internet = await openInternet();
    await using opened = await open(internet);
    const [address] = internet.addresses;
    const make = () => makeSandbox(opened.backend, { allowInternetAccess: true });
    const addressOf = async (sandbox: Sandbox) => (await runScript(sandbox, "hostname -I")).output;
    const former = await make();
    const inside = await addressOf(former);
    const other = await make();
    const sent = await runScript(former, `python3 -c '${DATAGRAMS}' ${address} ${internet.port}`);
    assert.equal(sent.output, "again\n");
    await former.destroy();
    // The next server begins with the first address again, and adopts the rules.
    await opened.backend.close();
    const [adopted] = await opened.backend.recover();
    assert.equal(adopted?.id, other.id);
    const next = await make();
    assert.equal(await addressOf(next), inside);
    assert.equal((await runScript(next, `python3 -c '${DATAGRAMS}'`)).output, "nothing\n");
    const own = await runScript(next, `python3 -c '${DATAGRAMS}' ${address} ${internet.port}`);
    assert.equal(own.output, "again\n");
    assert.equal(await reach(next, address, internet.port), "reached");
    assert.equal(await reach(adopted, address, internet.port), "reached");
    await Promise.all([next.destroy(), adopted.destroy()]);
    assert.deepEqual(await opened.leaks(), []);
  });

  it("refuses rules that it cannot enforce", async () => {
    await using internet = await openInternet();
    await using opened = await open(internet);
    const egress = { allowOut: ["example.com"], denyOut: [ALL_TRAFFIC] };
    const refused = { code: "invalid_argument", message: /does not support domain names \('example\.com'\)/ };
    await assert.rejects(makeSandbox(opened.backend, { egress }), refused);
    const sandbox = await makeSandbox(opened.backend);
    await assert.rejects(async () => sandbox.networking?.restrict(egress), refused);
    await sandbox.destroy();
    assert.deepEqual(await opened.leaks(), []);
    await using without = await openTestBackend();
    const unconnected = await makeSandbox(without.backend);
    assert.equal(unconnected.networking, undefined);
    await unconnected.destroy();
  });
});
