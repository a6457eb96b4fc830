import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { SandboxError } from "@coppice/core";
import { parseSignedFileRequest, SignatureCheck } from "./file-signature.js";

const TOKEN = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
const SIGNATURE = "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";

function signedUrl(query: Record<string, string>): URL {
  return new URL(`http://server/files?${new URLSearchParams(query).toString()}`);
}

describe("a signed file URL", () => {
  it("is checked by E2B's algorithm", () => {
    const url = signedUrl({ username: "user", path: "hello.txt", signature: SIGNATURE });
    const signed = parseSignedFileRequest("GET", url);
    assert.ok(signed);
    const check = new SignatureCheck(signed);
    assert.equal(check.expected(TOKEN), SIGNATURE);
    assert.equal(check.isMadeWith(TOKEN), true);
    assert.equal(check.isMadeWith("another token"), false);
    assert.equal(check.isExpired(Date.now()), false);
  });

  it("is valid for the signed operation, path, user and expiration alone", () => {
    const signedFor = { username: "user", path: "hello.txt", signature: SIGNATURE };
    const others: [string, Record<string, string>][] = [
      ["POST", signedFor],
      ["GET", { ...signedFor, path: "other.txt" }],
      ["GET", { ...signedFor, username: "root" }],
      ["GET", { ...signedFor, signature_expiration: "9999999999" }],
    ];
    for (const [method, query] of others) {
      const signed = parseSignedFileRequest(method, signedUrl(query));
      assert.ok(signed);
      assert.equal(new SignatureCheck(signed).isMadeWith(TOKEN), false, `${method} ${JSON.stringify(query)}`);
    }
  });

  it("expires when its second is over", () => {
    const signed = parseSignedFileRequest(
      "GET",
      signedUrl({ signature: "v1_x", signature_expiration: "1000" }),
    );
    assert.ok(signed);
    assert.equal(new SignatureCheck(signed).isExpired(1_000_999), false);
    assert.equal(new SignatureCheck(signed).isExpired(1_001_000), true);
  });

  it("is refused with parameters that its signature does not cover", () => {
    const base = `http://server/files?path=hello.txt&username=user&signature=${encodeURIComponent(SIGNATURE)}`;
    for (const extra of ["&user=root", "&path=/etc/shadow", "&username=root", "&signature=v1_x"]) {
      assert.throws(
        () => parseSignedFileRequest("GET", new URL(base + extra)),
        (error) => error instanceof SandboxError && error.message === "invalid signature",
        extra,
      );
    }
    assert.throws(() => parseSignedFileRequest("GET", new URL(`${base}&signature_expiration=soon`)), {
      code: "invalid_argument",
    });
  });

  it("can only read or write a file", () => {
    assert.equal(parseSignedFileRequest("GET", new URL("http://server/files?path=a")), undefined);
    assert.equal(parseSignedFileRequest("DELETE", signedUrl({ signature: "v1_x" })), undefined);
    assert.equal(parseSignedFileRequest("GET", new URL("http://server/envs?signature=v1_x")), undefined);
  });
});
