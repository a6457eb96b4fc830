import assert from "node:assert/strict";
import { it } from "node:test";
import { HttpError } from "../messages/http-error.js";
import { addressOf } from "./targeting.js";

const host = (value: string) => addressOf({ host: value }, "sandboxes.example");
const headers = (id?: string, port?: string) =>
  addressOf(
    { host: "anything", ...(id && { "e2b-sandbox-id": id }), ...(port && { "e2b-sandbox-port": port }) },
    "sandboxes.example",
  );

it("a host names a port and a sandbox", () => {
  assert.deepEqual(host("3000-iabc.sandboxes.example"), { sandboxId: "iabc", port: 3000 });
  assert.deepEqual(host("49983-iabc-client7.Sandboxes.Example:8443"), { sandboxId: "iabc", port: 49983 });
});

it("headers name them too, and win over the host", () => {
  assert.deepEqual(headers("iabc", "49983"), { sandboxId: "iabc", port: 49983 });
  assert.deepEqual(headers("iabc-client7", "8080"), { sandboxId: "iabc", port: 8080 });
});

it("other hosts, and the domain's own names, are addressed to no sandbox", () => {
  for (const value of [
    "localhost:3000",
    "127.0.0.1",
    "[::1]:3000",
    "sandboxes.example",
    "api.sandboxes.example",
    "sandbox.sandboxes.example",
    "",
  ]) {
    assert.equal(host(value), undefined, value);
  }
});

it("the SDKs' debug mode is recognised, and leaves the port to the listener", () => {
  assert.equal(headers("debug_sandbox_id", "49983"), undefined);
});

it("an invalid address is refused with the edge's texts", () => {
  const refusals: readonly (readonly [() => unknown, string])[] = [
    [() => headers("iabc"), "missing header"],
    [() => headers(undefined, "80"), "missing header"],
    [() => host("nodash.sandboxes.example"), "Invalid host"],
    [() => host("80-iabc.deeper.sandboxes.example"), "Invalid host"],
    [() => host("80-i_bc.sandboxes.example"), "Invalid sandbox ID"],
    [() => headers("../etc", "80"), "Invalid sandbox ID"],
    [() => host("http-iabc.sandboxes.example"), "Invalid sandbox port"],
    [() => headers("iabc", "65536"), "Invalid sandbox port"],
    [() => headers("iabc", "0"), "Invalid sandbox port"],
  ];
  for (const [run, text] of refusals) {
    assert.throws(
      run,
      (error) => error instanceof HttpError && error.status === 400 && error.body === text,
      text,
    );
  }
});
