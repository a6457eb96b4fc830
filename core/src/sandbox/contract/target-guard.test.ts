import assert from "node:assert/strict";
import dns from "node:dns";
import { syncBuiltinESMExports } from "node:module";
import { it } from "node:test";
import { promisify } from "node:util";
import { TargetGuard } from "./target-guard.js";

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

it("a name is refused when any of its addresses is private", async (t) => {
  let addresses: readonly string[] = [];
  const lookup = (_host: string, _options: unknown, callback: (...given: unknown[]) => void) =>
    callback(
      null,
      addresses.map((address) => ({ address, family: 4 })),
    );
  const mocked = t.mock.method(dns, "lookup", lookup as unknown as typeof dns.lookup);
  syncBuiltinESMExports();
  try {
    const look = () => promisify(new TargetGuard([]).lookup)("mixed.example", { all: true });
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
  } finally {
    mocked.mock.restore();
    syncBuiltinESMExports();
  }
});
