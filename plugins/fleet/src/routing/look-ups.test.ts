import assert from "node:assert/strict";
import { it } from "node:test";
import type { Principal } from "@coppice/core";
import { type Asker, LookUps } from "./look-ups.js";

const MOST = 8;
const alone = { add: () => {}, refusal: () => undefined };

it("strangers who look up what is nowhere keep neither tenants nor other addresses from asking", async () => {
  const lookUps = new LookUps(MOST, alone);
  const { promise: answered, resolve } = Promise.withResolvers<string>();
  const started: Promise<unknown>[] = [];
  /** Starts look-ups that get no answer, until one is refused. @returns how many were started */
  const flood = async (asker: Asker): Promise<number> => {
    for (let count = 0; ; count += 1) {
      const run = lookUps.run(asker, () => answered);
      const isRefused = await Promise.race([run.then((looked) => looked === undefined), pending()]);
      if (isRefused) return count;
      started.push(run);
    }
  };
  const stranger = (clientAddress: string): Asker => ({ principal: undefined, clientAddress });
  const principal = { tenant: "acme", name: "key", scopes: new Set() } satisfies Principal;

  assert.equal(await flood(stranger("198.51.100.1")), MOST / 2);
  // An IPv6 client has a whole network.
  assert.equal(await flood(stranger("2001:db8::1")), MOST / 4);
  assert.equal(await flood(stranger("2001:db8::2")), 0);
  assert.equal(await flood({ principal, clientAddress: "198.51.100.1" }), MOST);
  assert.equal(await flood(stranger("198.51.100.3")), 1);
  resolve("found");
  for (const run of started) assert.deepEqual(await run, { found: "found" });
  assert.equal(
    await lookUps.run(stranger("198.51.100.1"), async () => "again").then((one) => one?.found),
    "again",
  );
  await assert.rejects(
    lookUps.run(stranger("198.51.100.1"), () => Promise.reject(new Error("no answer"))),
    /no answer/,
  );
});

/** False in a later turn than that of a refusal. */
function pending(): Promise<boolean> {
  return new Promise((resolve) => setImmediate(() => resolve(false)));
}
