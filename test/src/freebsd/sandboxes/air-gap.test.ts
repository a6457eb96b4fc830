import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ALL_TRAFFIC, type Sandbox } from "@coppice/core/backend";
import { openFreebsdHost, OUTSIDE, reasonWithoutFreebsdHost } from "../../harness/freebsd/freebsd-host.js";
import { newId } from "../../harness/freebsd/jail-faults.js";

const [RESOLVER, OTHER] = OUTSIDE.addresses;
const DNS_PORT = 53;

/** Which of some places, each an address and a port, a sandbox reaches. */
async function reached(sandbox: Sandbox, places: readonly string[]): Promise<readonly string[]> {
  const attempt = `timeout 1 bash -c "</dev/tcp/$each" 2> /dev/null && echo $each`;
  const script = `for each in ${places.join(" ")}; do ${attempt}; done; true`;
  const env = { PATH: "/usr/bin:/bin" };
  const started = await sandbox.spawn({ path: "/bin/sh", args: ["-c", script], env, input: "none" });
  const pieces: Uint8Array[] = [];
  for await (const { data } of started.output) pieces.push(data);
  return Buffer.concat(pieces).toString().split("\n").slice(0, -1);
}

describe("a jail without internet access", { skip: reasonWithoutFreebsdHost() ?? false }, () => {
  it("asks the name servers of the settings, and reaches what it is allowed besides", async () => {
    await using host = await openFreebsdHost({ isConnected: true });
    const network = { ...host.settings.network, resolvers: [RESOLVER] };
    const backend = host.backend({ network });
    const spec = { id: newId(), template: "base", limits: {}, allowInternetAccess: false };
    const sandbox = await backend.provision(spec, new AbortController().signal);
    const places = [RESOLVER, OTHER].flatMap((address) =>
      [DNS_PORT, OUTSIDE.port].map((port) => `${address}/${port}`),
    );
    const dns = `${RESOLVER}/${DNS_PORT}`;
    assert.deepEqual(await reached(sandbox, places), [dns]);
    await sandbox.networking?.restrict({ allowOut: [OTHER], denyOut: [ALL_TRAFFIC] });
    assert.deepEqual(await reached(sandbox, places), [dns, ...places.slice(2)]);
    await sandbox.networking?.restrict({ allowOut: [], denyOut: [ALL_TRAFFIC, RESOLVER] });
    assert.deepEqual(await reached(sandbox, places), [dns]);
    await sandbox.destroy();
    assert.deepEqual(await host.leaks(), []);
    await backend.close();
  });
});
