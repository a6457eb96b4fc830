import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { it } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { systemClock, type Logger, MemoryRoom } from "@coppice/core";
import { SeededRandom } from "@coppice/core/testing";
import type { WebSocket } from "ws";
import type { ChannelName } from "../transport/kernel-channels.js";
import { ClientSocket } from "./client-session.js";
import type { ClientFrame } from "./client-frame.js";
import { jupyterServerConfig } from "./jupyter-server-config.js";
import { KernelClients } from "./kernel-clients.js";
import type { Kernel } from "../kernel/kernel.js";
import type { KernelMessage } from "../transport/wire.js";

const log = { debug: () => undefined, warn: () => undefined } as unknown as Logger;

interface Seen {
  readonly channel: string;
  readonly parent: string | undefined;
  readonly raw: string;
}

/** A client whose socket only records. */
class RecordingSocket extends EventEmitter {
  readonly seen: Seen[] = [];
  readonly protocol = "";
  isStuck = false;
  closedWith: number | undefined;

  send(data: Buffer, _options: object, sent: () => void): void {
    const raw = data.toString("utf8");
    const message = JSON.parse(raw) as { channel: string; parent_header: { msg_id?: string } };
    this.seen.push({ channel: message.channel, parent: message.parent_header.msg_id, raw });
    if (!this.isStuck) sent();
  }

  close(code: number): void {
    this.closedWith = code;
    this.emit("close", 1000);
  }

  terminate(): void {
    this.emit("close", 1006);
  }

  ping(): void {}
}

/** Clients of a kernel that does what the test says. */
function arrange(room = new MemoryRoom(2 ** 40)) {
  const forwarded: ClientFrame[] = [];
  let interrupts = 0;
  const gone = Promise.withResolvers<void>();
  const kernel = {
    isUsable: true,
    gone: gone.promise,
    forward: async (_channel: ChannelName, frame: ClientFrame) => void forwarded.push(frame),
    interrupt: async () => void interrupts++,
  } as unknown as Kernel;
  const settings = jupyterServerConfig.parse({
    maxPending: 100,
    maxClientQueue: "1000000B",
    slowClientTimeout: "1s",
    slowLookerTimeout: "1s",
  });
  const clients = new KernelClients(
    { watch: () => undefined, ready: async () => undefined, restart: async () => undefined },
    { settings, clock: systemClock, log, hold: (giveUp) => room.open({ tenant: "t", sandbox: "s", giveUp }) },
  );
  clients.started(kernel);
  const connect = (id: string) => {
    const recording = new RecordingSocket();
    const options = { framing: "json", clock: systemClock, settings, place: clients.place() } as const;
    const socket = new ClientSocket(recording as unknown as WebSocket, options);
    const session = clients.connect(id, socket);
    const send = (requestId: string, channel = "shell", type = "execute_request"): void => {
      const header = Buffer.from(JSON.stringify({ msg_id: requestId, msg_type: type, session: id }));
      const nothing = Buffer.from("{}");
      const parts = { header, parentHeader: nothing, metadata: nothing, content: nothing, buffers: [] };
      clients.accept(session, { channel, id: requestId, type, session: id, ...parts });
    };
    return { recording, seen: recording.seen, session, socket, send, leave: () => recording.terminate() };
  };
  return { clients, connect, forwarded, interrupts: () => interrupts };
}

function message(
  type: string,
  parentId: string | undefined,
  parts: Partial<KernelMessage> = {},
): KernelMessage {
  return {
    id: "k",
    type,
    session: "kernel",
    date: undefined,
    parentId,
    parentType: "execute_request",
    parentSession: "x",
    header: Buffer.from(JSON.stringify({ msg_id: "k", msg_type: type, session: "kernel" })),
    parentHeader: Buffer.from(JSON.stringify(parentId === undefined ? {} : { msg_id: parentId })),
    metadata: Buffer.from("{}"),
    content: Buffer.from("{}"),
    buffers: [],
    ...parts,
  };
}

it("for random messages of a kernel, clients get whole messages, and answers to their own requests alone", async () => {
  const { clients, connect } = arrange();
  const random = new SeededRandom(5);
  const all = ["a", "b", "c"].map((name) => ({ name, ...connect(name) }));
  for (let index = 0; index < 30; index++) {
    const one = all[index % 3];
    one?.send(`${one.name}-${index}`);
  }
  const junk = [
    "{}",
    "",
    "[]",
    "null",
    "{",
    '{"execution_state": "busy"}',
    '{"execution_state": "idle"}',
    '{}, "channel": "stdin"',
    '{"\u2028": "é"}',
    `${'{"a":'.repeat(600)}1${"}".repeat(600)}`,
  ];
  const types = [
    "status",
    "stream",
    "execute_reply",
    "input_request",
    "iopub_welcome",
    "shutdown_reply",
    "__proto__",
    "x".repeat(500),
  ];
  const channels = ["shell", "control", "stdin", "iopub"] as const;
  for (let round = 0; round < 20_000; round++) {
    const owner = all[random.below(3)];
    const parent = [undefined, "nobody's", `${owner?.name}-${random.below(40)}`, "__proto__"][
      random.below(4)
    ];
    const part = (): Buffer =>
      random.below(20) === 0
        ? Buffer.from([0x7b, random.below(256), 0x7d])
        : Buffer.from(junk[random.below(junk.length)] ?? "");
    const parts = random.below(3) === 0 ? { content: part(), metadata: part() } : { content: part() };
    await clients.received(
      channels[random.below(4)] ?? "iopub",
      message(types[random.below(types.length)] ?? "", parent, parts),
    );
  }
  for (const { name, seen } of all) {
    assert.ok(seen.length > 0);
    for (const { channel, parent, raw } of seen)
      assert.ok(channel === "iopub" || parent?.startsWith(`${name}-`), `${name} got ${raw}`);
  }
  assert.ok(["idle", "busy"].includes(clients.state));
  clients.removed();
});

it("unrequested input does not reach the kernel, and one answer is enough", async () => {
  const { clients, connect, forwarded } = arrange();
  const asked = connect("asked");
  const other = connect("other");
  asked.send("cell");
  await clients.received("stdin", message("input_request", "cell"));
  other.send("r1", "stdin", "input_reply");
  asked.send("r2", "stdin", "execute_request");
  asked.send("r3", "stdin", "input_reply");
  asked.send("r4", "stdin", "input_reply");
  await turn();
  assert.deepEqual(
    forwarded.map(({ id }) => id),
    ["cell", "r3"],
  );
  clients.removed();
});

it("an input request for an absent client interrupts the kernel", async () => {
  const { clients, connect, interrupts } = arrange();
  await clients.received("stdin", message("input_request", "nobody's"));
  assert.equal(interrupts(), 1);
  const asked = connect("asked");
  asked.send("cell");
  await clients.received("stdin", message("input_request", "cell"));
  asked.leave();
  clients.disconnect(asked.session, asked.socket, false);
  assert.equal(interrupts(), 2);
  clients.removed();
});

it("late answers find their client; the number of remembered ids is limited", async () => {
  const { clients, connect } = arrange();
  const client = connect("a");
  client.send("cell");
  await clients.received(
    "iopub",
    message("status", "cell", { content: Buffer.from('{"execution_state": "idle"}') }),
  );
  await clients.received("shell", message("execute_reply", "cell"));
  assert.deepEqual(
    client.seen.map(({ channel }) => channel),
    ["iopub", "shell"],
  );
  for (let index = 0; index < 5000; index++)
    await clients.received(
      "iopub",
      message("status", `made up ${index}`, { content: Buffer.from('{"execution_state": "busy"}') }),
    );
  assert.equal(clients.state, "busy");
  clients.removed();
});

it("clients that take nothing, and those that are away, lose it where it fills the room, and later ones do not", async () => {
  const { clients, connect } = arrange(new MemoryRoom(2 ** 20));
  const [stuck, away] = [connect("stuck"), connect("away")];
  stuck.recording.isStuck = true;
  away.leave();
  clients.disconnect(away.session, away.socket, true);
  const content = Buffer.from(JSON.stringify({ text: "x".repeat(200_000) }));
  // Each is kept for both.
  for (let count = 0; count < 3; count++) void clients.received("iopub", message("stream", "x", { content }));
  assert.equal(stuck.recording.closedWith, 1013);
  clients.disconnect(stuck.session, stuck.socket, true);
  const later = connect("later");
  for (let count = 0; count < 20; count++)
    await clients.received("iopub", message("stream", "x", { content }));
  assert.deepEqual([later.seen.length, later.recording.closedWith], [20, undefined]);
  const back = connect("away");
  assert.equal(back.seen.length, 0);
  clients.removed();
});
