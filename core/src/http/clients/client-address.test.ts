import assert from "node:assert/strict";
import { it } from "node:test";
import { ClientAddresses, clientOf } from "./client-address.js";

it("X-Forwarded-For is believed from trusted proxies alone", () => {
  const nobody = new ClientAddresses([]);
  const trusting = new ClientAddresses(["10.0.0.0/8", "fd00::/64", "192.0.2.1", "2001:db8:1::1"]);
  const cases: readonly [ClientAddresses, peer: string | undefined, forwarded: string | undefined, string][] =
    [
      [nobody, "198.51.100.7", undefined, "198.51.100.7"],
      [nobody, "10.0.0.1", "203.0.113.9", "10.0.0.1"],
      [nobody, "::ffff:198.51.100.7", undefined, "198.51.100.7"],
      [nobody, undefined, "203.0.113.9", ""],
      [trusting, "198.51.100.7", "203.0.113.9", "198.51.100.7"],
      [trusting, "10.0.0.1", undefined, "10.0.0.1"],
      [trusting, "10.0.0.1", "203.0.113.9", "203.0.113.9"],
      [trusting, "::ffff:10.0.0.1", "2001:db8::1", "2001:db8::1"],
      [trusting, "fd00::5", " 203.0.113.9 ", "203.0.113.9"],
      // Entries from the client stand to the left of the first trusted proxy's entry.
      [trusting, "10.0.0.1", "1.2.3.4, 203.0.113.9, 192.0.2.1", "203.0.113.9"],
      [trusting, "10.0.0.1", "203.0.113.9, 10.9.9.9", "203.0.113.9"],
      [trusting, "10.0.0.1", "203.0.113.9, unknown", "10.0.0.1"],
      [trusting, "10.0.0.1", "10.2.0.1, 10.3.0.1", "10.2.0.1"],
      [trusting, "10.0.0.1", ", ,", "10.0.0.1"],
      [trusting, "2001:db8:1::1", "203.0.113.9", "203.0.113.9"],
      [trusting, "2001:db8:1::2", "203.0.113.9", "2001:db8:1::2"],
    ];
  for (const [addresses, peer, forwarded, expected] of cases) {
    const headers = forwarded === undefined ? {} : { "x-forwarded-for": forwarded };
    assert.equal(addresses.of(peer, headers), expected, `${peer} says ${forwarded}`);
  }
});

it("a client came by HTTPS when it did, or when a trusted proxy says so", () => {
  const nobody = new ClientAddresses([]);
  const trusting = new ClientAddresses(["10.0.0.0/8"]);
  const said = (value: string) => ({ "x-forwarded-proto": value });
  const proxy = { remoteAddress: "::ffff:10.0.0.1" };
  assert.equal(trusting.protocolOf(proxy, said("https")), "https");
  assert.equal(trusting.protocolOf(proxy, said("https, http")), "http", "the last word is the proxy's");
  assert.equal(trusting.protocolOf(proxy, {}), "http");
  assert.equal(trusting.protocolOf({ remoteAddress: "198.51.100.7" }, said("https")), "http");
  assert.equal(nobody.protocolOf(proxy, said("https")), "http");
  assert.equal(nobody.protocolOf({ ...proxy, encrypted: true }, said("http")), "https");
});

it("an IPv6 client is its /64, whichever way the address is written", () => {
  assert.equal(clientOf("198.51.100.7"), "198.51.100.7");
  assert.equal(clientOf("2001:db8:0:7:1:2:3:4"), "2001:db8:0:7");
  assert.equal(clientOf("2001:db8:0:7::9"), "2001:db8:0:7");
  assert.equal(clientOf("2001:db8::9"), "2001:db8:0:0");
  const trusting = new ClientAddresses(["10.0.0.0/8"]);
  assert.equal(trusting.countedFor("::ffff:198.51.100.7"), "198.51.100.7");
  assert.equal(trusting.countedFor("2001:db8:0:7::9"), "2001:db8:0:7");
  assert.equal(trusting.countedFor("::ffff:10.0.0.1"), undefined);
});
