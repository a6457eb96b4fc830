import assert from "node:assert/strict";
import { createSocket } from "node:dgram";
import { lookup } from "node:dns/promises";
import { once } from "node:events";
import { it, type TestContext } from "node:test";
import { nameAddresses } from "./name-addresses.js";

const ADDRESS = [9, 9, 9, 9];

/** A name server that says nothing about names with `silent` in them, does not know `unknown`, and has one address for others. */
async function openNameServer(t: TestContext) {
  const silent = Promise.withResolvers<void>();
  let waiting = 0;
  const socket = createSocket("udp4");
  socket.on("message", (query, { address, port }) => {
    const end = query.indexOf(0, 12) + 5;
    const name = query.toString("latin1", 12, end);
    if (name.includes("silent")) {
      waiting += 1;
      if (waiting === MANY) silent.resolve();
      return;
    }
    const isFound = !name.includes("unknown") && query.readUInt16BE(end - 4) === 1;
    const head = Buffer.alloc(12);
    query.copy(head, 0, 0, 2);
    head.writeUInt16BE(name.includes("unknown") ? 0x8183 : 0x8180, 2);
    head.writeUInt16BE(1, 4);
    head.writeUInt16BE(isFound ? 1 : 0, 6);
    const record = isFound ? [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...ADDRESS] : [];
    socket.send(Buffer.concat([head, query.subarray(12, end), Buffer.from(record)]), port, address);
  });
  socket.bind(0, "127.0.0.1");
  await once(socket, "listening");
  t.after(() => socket.close());
  return { servers: [`127.0.0.1:${socket.address().port}`], whenManyWait: silent.promise };
}

const MANY = 32;

it("names whose server is silent delay no other look-up of this process, and have an end", async (t) => {
  const { servers, whenManyWait } = await openNameServer(t);
  const ended: string[] = [];
  const look = async (name: string) => {
    const found = await nameAddresses(name, { servers }).catch((error: Error) => error);
    ended.push(name);
    return found;
  };
  const silent = Array.from({ length: MANY }, (_, at) => look(`silent${at}.test`));
  await whenManyWait;
  assert.deepEqual(await look("other.test"), [{ address: ADDRESS.join("."), family: 4 }]);
  await lookup("localhost");
  assert.deepEqual(ended, ["other.test"]);
  for (const failed of await Promise.all(silent)) assert.ok(failed instanceof Error);
});

it("a name is looked for in the hosts file first; one that nobody knows has no address", async (t) => {
  const { servers } = await openNameServer(t);
  const localhost = await nameAddresses("LocalHost.", { servers });
  assert.ok(localhost.some(({ address }) => address === "127.0.0.1"));
  assert.ok(!localhost.some(({ address }) => address === ADDRESS.join(".")));
  assert.deepEqual(await nameAddresses("unknown.test", { servers }), []);
  assert.deepEqual(await nameAddresses("::1", { servers }), [{ address: "::1", family: 6 }]);
});
