import assert from "node:assert/strict";
import os from "node:os";
import { syncBuiltinESMExports } from "node:module";
import { it } from "node:test";
import { promisify } from "node:util";
import { failedConnection, TargetGuard } from "./target-guard.js";

it("only the public internet is reached, in every notation of an address", () => {
  const guard = new TargetGuard([]);
  const kept = [
    ["127.0.0.1", "127.255.255.255", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"],
    ["169.254.169.254", "168.63.129.16", "100.64.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255"],
    [
      "::1",
      "::",
      "::ffff:127.0.0.1",
      "::ffff:7f00:1",
      "::ffff:169.254.169.254",
      "fe80::1",
      "fd00::1",
      "ff02::1",
    ],
    ["64:ff9b::7f00:1", "::ffff:0:7f00:1", "2002:7f00:1::", "::127.0.0.1"],
  ].flat();
  for (const address of kept) assert.equal(guard.permits(address), false, address);
  for (const address of ["1.1.1.1", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1"]) {
    assert.equal(guard.permits(address), true, address);
  }
  // `URL` normalises the other notations of an IPv4 address.
  for (const host of [
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "127.0.0.1.",
  ]) {
    assert.equal(guard.permitsHost(new URL(`http://${host}/`).hostname), false, host);
  }
});

it("addresses that the operator allows are reached, and no others", () => {
  const guard = new TargetGuard(["10.1.0.0/16", "192.168.1.7", "fd00:1::/32"]);
  for (const address of ["10.1.2.3", "192.168.1.7", "fd00:1::5", "::ffff:10.1.2.3"]) {
    assert.equal(guard.permits(address), true, address);
  }
  for (const address of ["10.2.0.1", "192.168.1.8", "fd00:2::5", "127.0.0.1"]) {
    assert.equal(guard.permits(address), false, address);
  }
});

it("an address of this host is not reached, though it is public, and from the moment that it has it", (t) => {
  const guard = new TargetGuard([]);
  const ours: Record<string, object[]> = { eth0: [{ address: "9.9.9.9" }] };
  const mocked = t.mock.method(os, "networkInterfaces", () => ours as never);
  syncBuiltinESMExports();
  try {
    assert.equal(guard.permits("9.9.9.9"), false);
    assert.equal(guard.permits("::ffff:9.9.9.9"), false);
    assert.equal(guard.permitsHost("9.9.9.9"), false);
    assert.equal(guard.permits("2606:4700::1111"), true);
    ours["eth1"] = [{ address: "2606:4700::1111" }];
    assert.equal(guard.permits("2606:4700::1111"), false);
    assert.equal(new TargetGuard(["9.9.9.9"]).permits("9.9.9.9"), true);
    assert.equal(guard.permits("9.9.9.10"), true);
  } finally {
    mocked.mock.restore();
    syncBuiltinESMExports();
  }
});

it("what fails at a port that a client chose is told by one text, but a certificate's fault", () => {
  const failed = (code: string) =>
    failedConnection(Object.assign(new Error(`${code} 9.9.9.9:8082`), { code }));
  const texts = ["ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EPROTO", "HPE_INVALID_CONSTANT"].map(failed);
  assert.deepEqual(new Set(texts), new Set(["the connection failed"]));
  assert.equal(failed("CERT_HAS_EXPIRED"), "the connection failed (CERT_HAS_EXPIRED)");
  assert.equal(failedConnection(new Error("there was no answer")), "there was no answer");
});

it("a name is resolved once, for the connection, and refused when its address is private", async () => {
  const look = (guard: TargetGuard, host: string) => promisify(guard.lookup)(host, { all: true });
  const closed = new TargetGuard([]);
  const [refused, unknown] = await Promise.all(
    ["localhost", "no-such-host.invalid"].map((host) =>
      look(closed, host).catch((error: Error) => error.message),
    ),
  );
  assert.equal(refused, "the host has no public address");
  assert.equal(unknown, refused, "a name that is private and one that is not are told apart");
  assert.ok(await look(new TargetGuard(["127.0.0.0/8", "::1"]), "localhost"));
});

it("a name is refused when any of its addresses is private", async () => {
  let addresses: readonly string[] = [];
  const guard = new TargetGuard([], async () => addresses.map((address) => ({ address, family: 4 })));
  const look = () => promisify(guard.lookup)("mixed.example", { all: true });
  for (const mixed of [
    ["1.1.1.1", "127.0.0.1"],
    ["10.0.0.1", "1.1.1.1"],
    ["1.1.1.1", "169.254.169.254", "8.8.8.8"],
  ]) {
    addresses = mixed;
    await assert.rejects(look(), /the host has no public address/, mixed.join(" "));
  }
  addresses = ["1.1.1.1", "8.8.8.8"];
  assert.ok(await look());
});

it("a name with thousands of addresses holds nobody up: this host's own are asked for once", async (t) => {
  const many = Array.from({ length: 4000 }, (_, index) => `1.1.${index >> 8}.${index & 255}`);
  let asked = 0;
  const found = t.mock.method(os, "networkInterfaces", () => {
    asked += 1;
    return {};
  });
  let addresses: readonly string[] = [];
  const guard = new TargetGuard([], async () => addresses.map((address) => ({ address, family: 4 })));
  syncBuiltinESMExports();
  try {
    const look = () => promisify(guard.lookup)("many.example", { all: true });
    addresses = many.slice(0, 100);
    assert.ok(await look());
    assert.equal(asked, 1);
    addresses = many;
    await assert.rejects(look(), /the host has no public address/);
  } finally {
    found.mock.restore();
    syncBuiltinESMExports();
  }
});
