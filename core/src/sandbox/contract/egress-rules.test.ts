import assert from "node:assert/strict";
import { it } from "node:test";
import { ALL_TRAFFIC, checkNetworkPolicy, egressRulesOf } from "./egress-rules.js";

function check(allowOut: readonly string[], denyOut: readonly string[], allowInternetAccess = true): void {
  checkNetworkPolicy({ allowInternetAccess, egress: { allowOut, denyOut } });
}

it("addresses, ranges and, where everything else is denied, domains make rules", () => {
  const addresses = [
    "8.8.8.8",
    "8.8.8.0/24",
    "0.0.0.0/0",
    "8.8.8.8/0",
    "2001:db8::1",
    "2001:db8::/32",
    "::/0",
  ];
  check(addresses, addresses);
  const longest = `${"a".repeat(63)}.${"b".repeat(63)}.${"c".repeat(63)}.${"d".repeat(61)}`;
  const domains = [
    "example.com",
    "*.example.com",
    "EXAMPLE.com",
    "xn--bcher-kva.example",
    "_x.a.b",
    "com",
    longest,
  ];
  check(domains, [ALL_TRAFFIC]);
  check(domains, [], false);
  checkNetworkPolicy({ allowInternetAccess: false, egress: undefined });
});

it("an invalid destination, or a domain whose neighbours stay reachable, is refused by name", () => {
  const neither = [
    "",
    " ",
    "8.8.8",
    "8.8.8.8.",
    "08.8.8.8",
    "8.8.8.8/33",
    "8.8.8.8/-1",
    "8.8.8.8/",
    "8.8.8.8/1/2",
    "300.1.1.1",
    "::1/129",
    "fe80::1%eth0",
    "a b",
    "a..b",
    "-a.com",
    "a-.com",
    ".com",
    "*",
    "*.",
    "a.*.com",
    "a.com.",
    "a\nb",
    "1.1.1.1; drop",
    "http://a.com",
    "a.com:80",
    "a".repeat(64),
    `${"a.".repeat(126)}com`,
  ];
  for (const destination of neither) {
    for (const [allowOut, denyOut] of [
      [[destination], [ALL_TRAFFIC]],
      [[], ["1.1.1.1", destination]],
    ] as const) {
      assert.throws(
        () => check(allowOut, denyOut),
        (error: Error) => {
          assert.equal((error as { code?: string }).code, "invalid_argument");
          assert.ok(error.message.includes(`'${destination}'`), error.message);
          return true;
        },
        destination,
      );
    }
  }
  assert.throws(() => check([], ["example.com"]), /denyOut: 'example.com' is no IP address/);
  assert.throws(() => check(["example.com"], ["8.8.8.8"]), /'example.com' needs '0.0.0.0\/0'/);
});

it("a policy without internet access denies everything that it does not allow", () => {
  const egress = { allowOut: ["8.8.8.8"], denyOut: ["1.1.1.1"] };
  const denied = { allowOut: ["8.8.8.8"], denyOut: [ALL_TRAFFIC, "1.1.1.1"] };
  assert.deepEqual(egressRulesOf({ allowInternetAccess: false, egress }), denied);
  assert.deepEqual(egressRulesOf({ allowInternetAccess: true, egress }), egress);
  const closed = { allowOut: [], denyOut: [ALL_TRAFFIC] };
  assert.deepEqual(egressRulesOf({ allowInternetAccess: false, egress: undefined }), closed);
  assert.deepEqual(egressRulesOf({ allowInternetAccess: true, egress: undefined }), {
    allowOut: [],
    denyOut: [],
  });
});
