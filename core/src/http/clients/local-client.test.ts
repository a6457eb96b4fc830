import assert from "node:assert/strict";
import { it } from "node:test";
import { isLocalClient } from "./local-client.js";

it("programs of this machine and the pages that it serves are local; pages from elsewhere are not", () => {
  const host = "localhost:3000";
  for (const [headers, isLocal] of [
    [{ host }, true],
    [{ host: "127.0.0.1" }, true],
    [{ host: "[::1]:80" }, true],
    [{ host, origin: "http://localhost:8080" }, true],
    [{ host: "8080-iabc.localhost", origin: "http://8080-iabc.localhost" }, true],
    [{ host, "sec-fetch-site": "same-origin", "sec-fetch-mode": "no-cors" }, true],
    [{ host, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate" }, true],
    [{ host, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors" }, false],
    [{ host, origin: "https://elsewhere.example" }, false],
    [{ host, origin: "null" }, false],
    [{ host, origin: "http://8080-iabc.localhost" }, false],
    [{ host: "rebound.example" }, false],
    [{}, false],
  ] as const) {
    assert.equal(isLocalClient(headers), isLocal, JSON.stringify(headers));
  }
});
