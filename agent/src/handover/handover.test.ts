import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { type Link, PayloadWriter, ProtocolError, Request } from "../wire/frames.js";
import { Handover } from "./handover.js";

const OFFERED = 7;
const offer = (): Buffer => Buffer.from(new PayloadWriter().u32(OFFERED).finish());

/** A handover, the requests that it sent, and the descriptors that it took over. */
function open(): { readonly handover: Handover; readonly sent: number[]; readonly taken: number[] } {
  const sent: number[] = [];
  const taken: number[] = [];
  const link: Link = {
    id: 1,
    connection: {},
    canShare: true,
    send: (type) => void sent.push(type),
    release: () => undefined,
    async takeDescriptor(descriptor) {
      taken.push(descriptor);
      return descriptor;
    },
  };
  return { handover: new Handover(link), sent, taken };
}

describe("a handover", () => {
  it("takes the descriptor that it asked for, once", async () => {
    const { handover, sent, taken } = open();
    const asked = handover.take();
    handover.receive(offer());
    assert.equal(await asked, OFFERED);
    assert.equal(await handover.take(), undefined);
    assert.deepEqual([sent, taken], [[Request.Share], [OFFERED]]);
  });

  it("leaves one that comes after the agent was given up: nobody would close it", async () => {
    const { handover, taken } = open();
    const asked = handover.take();
    handover.lost();
    handover.receive(offer());
    assert.equal(await asked, undefined);
    assert.deepEqual(taken, []);
  });

  it("refuses one that nobody asked for", () => {
    const { handover, taken } = open();
    assert.throws(() => handover.receive(offer()), ProtocolError);
    assert.deepEqual(taken, []);
  });
});
