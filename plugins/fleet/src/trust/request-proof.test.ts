import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { SeededRandom } from "@coppice/core/testing";
import { FleetSecrets } from "./fleet-secrets.js";
import { type ProvenRequest, RequestProver, RequestVerifier, SentNumbers } from "./request-proof.js";

const [SECRET, FORMER, STRANGE] = ["s", "f", "x"].map((letter) => letter.repeat(32)) as [
  string,
  string,
  string,
];
const SERVER = { identity: "one", run: "today" };
const REQUEST: ProvenRequest = {
  method: "GET",
  path: "/sandboxes?limit=1",
  listener: "api",
  principal: "of acme",
};

function proverWith(secret: string, server = SERVER, nowMs?: () => number): RequestProver {
  const secrets = new FleetSecrets({ secret });
  const [name = ""] = Object.keys(secrets.proofsOf(["request"]));
  return new RequestProver({ secrets, secret: name, server, ...(nowMs && { nowMs }) });
}

function verifierWith(secret: string, ...previousSecrets: readonly string[]): RequestVerifier {
  const secrets = new FleetSecrets({ secret, previousSecrets });
  return new RequestVerifier({ secrets, server: () => SERVER });
}

const refused = (reason: string) => (error: unknown) =>
  (error as { readonly reason: string }).reason === reason;
const UNKNOWN = refused("fleet_peer_unknown");

describe("a request of another server", () => {
  it("is taken once, for the process that it was made for, and as it was made", () => {
    const prover = proverWith(SECRET);
    const verifier = verifierWith(SECRET);
    const proof = prover.proofOf(REQUEST);
    for (const change of [
      { method: "DELETE" },
      { path: "/sandboxes?limit=2" },
      { path: "/sandboxes" },
      { listener: "ops" },
      { listener: undefined },
      { principal: "of other" },
      { principal: undefined },
    ])
      assert.throws(
        () => verifier.require({ ...REQUEST, ...change }, proof),
        UNKNOWN,
        JSON.stringify(change),
      );
    for (const forged of [
      undefined,
      "",
      "x",
      SECRET,
      proof.slice(0, -1),
      `${proof}A`,
      proof.replace(/\.1\./, ".2."),
      proof.replace("today", "other"),
      proof.replace(/^.{8}/, "__proto__".slice(0, 8)),
    ])
      assert.throws(() => verifier.require(REQUEST, forged), UNKNOWN, forged);
    verifier.require(REQUEST, proof);
    assert.throws(() => verifier.require(REQUEST, proof), UNKNOWN);
    verifier.require(REQUEST, prover.proofOf(REQUEST));

    const strange = proverWith(STRANGE).proofOf(REQUEST);
    assert.throws(() => verifier.require(REQUEST, strange), UNKNOWN);
    const elsewhere = proverWith(SECRET, { ...SERVER, identity: "two" }).proofOf(REQUEST);
    assert.throws(() => verifier.require(REQUEST, elsewhere), UNKNOWN);
    const earlier = proverWith(SECRET, { ...SERVER, run: "yesterday" }).proofOf(REQUEST);
    assert.throws(() => verifier.require(REQUEST, earlier), refused("fleet_unavailable"));
  });

  it("may be proven by a former secret as long as that is configured, and never tells one", () => {
    const proof = proverWith(FORMER).proofOf(REQUEST);
    assert.throws(() => verifierWith(SECRET).require(REQUEST, proof), UNKNOWN);
    verifierWith(SECRET, FORMER).require(REQUEST, proof);
    assert.ok(!proof.includes(FORMER));
  });

  it("is not taken again after its sender was forgotten, and a sender that was silent goes on", () => {
    let nowMs = 1_000_000;
    const verifier = verifierWith(SECRET);
    const first = proverWith(SECRET, SERVER, () => nowMs);
    const proof = first.proofOf(REQUEST);
    verifier.require(REQUEST, proof);
    for (let count = 0; count < 4100; count += 1) {
      nowMs += 100;
      verifier.require(REQUEST, proverWith(SECRET, SERVER, () => nowMs).proofOf(REQUEST));
    }
    assert.throws(() => verifier.require(REQUEST, proof), UNKNOWN);
    verifier.require(REQUEST, first.proofOf(REQUEST));
  });

  it("is taken from servers whose clocks are hours apart, however long they send a request now and then", () => {
    const HOUR_MS = 3_600_000;
    let nowMs = 1_000 * HOUR_MS;
    const verifier = verifierWith(SECRET);
    const servers = [0, -9, 9, -2, 0, 0, 0, 0].map((hours) =>
      proverWith(SECRET, SERVER, () => nowMs + hours * HOUR_MS),
    );
    let earlier = "";
    for (let round = 0; round < 700; round += 1) {
      nowMs += 61_000;
      for (const server of servers) {
        const proof = server.proofOf(REQUEST);
        verifier.require(REQUEST, proof);
        if (server === servers[1]) {
          if (earlier !== "") assert.throws(() => verifier.require(REQUEST, earlier), UNKNOWN);
          earlier = proof;
        }
      }
    }
  });
});

it("numbers of a sender are good once, in any order within a window", () => {
  const random = new SeededRandom(7);
  const numbers = new SentNumbers();
  const taken = new Set<number>();
  let highest = 0;
  for (let round = 0; round < 60_000; round += 1) {
    const jump = round % 20_000 === 19_999 ? 1_000_000 : 40;
    const number = Math.max(1, highest + random.below(jump) - 30);
    const isGood = !taken.has(number) && number > highest - 16_384;
    assert.equal(numbers.take(number), isGood, `${number} after ${highest}`);
    taken.add(number);
    highest = Math.max(highest, number);
  }
  assert.equal(numbers.take(highest - 16_384), false);
  assert.ok([...taken].every((number) => !numbers.take(number)));
});
