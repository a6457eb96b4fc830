import assert from "node:assert/strict";
import { it } from "node:test";
import { FifoLock } from "./fifo-lock.js";

it("turns come in FIFO order, without aborted waiters", async () => {
  const lock = new FifoLock();
  const patient = new AbortController().signal;
  const leaving = new AbortController();
  const order: string[] = [];
  const first = await lock.acquire(patient);
  const take = async (name: string): Promise<void> => {
    using _turn = await lock.acquire(patient);
    order.push(name);
    await new Promise((resolve) => setImmediate(resolve));
    order.push(`${name} done`);
  };
  const second = take("second");
  const gone = assert.rejects(lock.acquire(leaving.signal), /enough/);
  const third = take("third");
  leaving.abort(new Error("enough"));
  await gone;
  assert.deepEqual(order, []);
  first[Symbol.dispose]();
  await Promise.all([second, third]);
  assert.deepEqual(order, ["second", "second done", "third", "third done"]);
});
