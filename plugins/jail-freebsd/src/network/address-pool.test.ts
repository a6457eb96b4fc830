import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { MemoryLeases } from "@coppice/core/testing";
import { AddressPool } from "./address-pool.js";

/** Five addresses for sandboxes, 10.9.8.10 to 10.9.8.14. */
const range = "10.9.8.0/28";

function poolOf(leases: MemoryLeases, network = "jails"): AddressPool {
  return new AddressPool({ range, leases: leases.of(network) });
}

describe("the addresses of a range", () => {
  it("are leased once each until none is left, released ones last", async () => {
    const leases = new MemoryLeases();
    const [pool, next, other] = [poolOf(leases), poolOf(leases), poolOf(leases, "machines")];
    assert.deepEqual(await other.take("guest"), { address: "10.9.8.10", number: 10 });
    // Leases of an earlier server are visible to a later one, even when both lease at once.
    const taken = await Promise.all([pool.take("a"), next.take("b"), pool.take("c"), next.take("d")]);
    assert.deepEqual(
      taken.map(({ number }) => number),
      [11, 12, 13, 14],
    );
    await assert.rejects(pool.take("e"), { code: "resource_exhausted" });
    await leases.of("jails").release("b");
    await leases.of("jails").release("a");
    assert.equal((await pool.take("e")).address, "10.9.8.11");
    await leases.of("jails").release("e");
    assert.equal((await pool.take("f")).address, "10.9.8.12");
    assert.deepEqual(await next.find("f"), { address: "10.9.8.12", number: 12 });
    assert.equal(await pool.find("guest"), undefined);
  });

  it("are all found in a range that is nearly full, however far away", async () => {
    const leases = new MemoryLeases();
    const pool = new AddressPool({ range: "10.9.8.0/24", leases: leases.of("jails") });
    for (let count = 0; count < 245; count++) await pool.take(`s${count}`);
    await assert.rejects(pool.take("late"), { code: "resource_exhausted" });
    await leases.of("jails").release("s100");
    assert.equal((await pool.take("late")).address, "10.9.8.110");
  });

  it("are those that a sandbox can have, and no others", () => {
    const pool = poolOf(new MemoryLeases());
    assert.deepEqual([pool.gateway, pool.prefixLength], ["10.9.8.1", 28]);
    assert.equal(pool.numberOf("10.9.8.11"), 11);
    assert.equal(pool.addressAt(11), "10.9.8.11");
    for (const foreign of ["", "10.9.8.9", "10.9.8.15", "10.9.7.10", "x"]) {
      assert.equal(pool.numberOf(foreign), undefined);
    }
    for (const foreign of [9, 15, -1, 10.5, NaN]) assert.equal(pool.addressAt(foreign), undefined);
  });

  it("are not leased while an action runs on a free one", async () => {
    const leases = new MemoryLeases();
    const pool = poolOf(leases);
    await pool.take("a");
    const done: number[] = [];
    const note = (number: number) => async () => {
      const { number: taken } = await pool.take(`during${number}`);
      done.push(number, taken);
    };
    await pool.whileFree(10, note(10));
    await pool.whileFree(11, note(11));
    // No sandbox can have an address outside of the range.
    await pool.whileFree(NaN, note(99));
    assert.deepEqual(done, [11, 12, 99, 13]);
    await assert.rejects(
      pool.whileFree(14, async () => {
        throw new Error("no");
      }),
    );
    assert.equal((await pool.take("b")).number, 14);
  });

  it("are leased again to a sandbox that uses one on the host, whatever the ledger says", async () => {
    const leases = new MemoryLeases();
    const pool = poolOf(leases);
    await pool.reclaim("a", "10.9.8.12");
    await pool.reclaim("a", "10.9.8.12");
    await pool.take("gone");
    await pool.reclaim("b", "10.9.8.10");
    assert.deepEqual(await leases.of("jails").all(), [
      { address: "10.9.8.12", holder: "a" },
      { address: "10.9.8.10", holder: "b" },
    ]);
    await poolOf(leases, "machines").take("guest");
    await assert.rejects(pool.reclaim("c", "10.9.8.11"), { code: "already_exists" });
  });
});
