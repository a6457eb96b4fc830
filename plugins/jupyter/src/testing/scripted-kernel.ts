import assert from "node:assert/strict";
import { PassThrough } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { type Logger, MemoryRoom, SandboxError } from "@coppice/core";
import type { Exit, Output, Process, Sandbox, User } from "@coppice/core/backend";
import { fakeClock } from "@coppice/core/testing";
import type { ChannelName } from "../transport/kernel-channels.js";
import type { KernelStart } from "../kernel/kernel-surroundings.js";
import { PortLeases } from "../programs/port-leases.js";
import { signedFrames } from "../transport/wire.js";

const log = { debug() {}, warn() {}, error() {} } as unknown as Logger;

const ASKED_MS = 10_000;

export interface Sent {
  readonly channel: string;
  readonly id: string;
  readonly type: string;
}

/** A kernel whose messages a test provides. */
export class ScriptedKernel {
  readonly sent: Sent[] = [];
  readonly start: KernelStart;
  readonly #said = {
    shell: new PassThrough({ objectMode: true }),
    control: new PassThrough({ objectMode: true }),
    stdin: new PassThrough({ objectMode: true }),
    iopub: new PassThrough({ objectMode: true }),
  };
  readonly #exit = Promise.withResolvers<Exit>();
  readonly #outputEnd = Promise.withResolvers<void>();
  readonly #stop = new AbortController();
  #isLeft = false;
  #key = "";
  #ids = 0;

  /** @param options `listens`: reports its ports. */
  constructor({ listens = true } = {}) {
    const exit = this.#exit;
    const outputEnd = this.#outputEnd;
    void exit.promise.then(() => outputEnd.resolve());
    const process: Process = {
      pid: 1,
      output: (async function* (): AsyncGenerator<Output, void, undefined> {
        const ports = { shell: 1, iopub: 2, stdin: 3, control: 4, hb: 5 };
        if (listens) yield { stream: "stdout", data: Buffer.from(`${JSON.stringify(ports)}\n`) };
        await outputEnd.promise;
      })(),
      write: async () => undefined,
      closeInput: async () => undefined,
      kill: async () => {
        if (this.#isLeft) throw new SandboxError("connection_closed", "the connection was closed");
        exit.resolve({ signal: "SIGKILL" });
      },
      resize: async () => undefined,
      exit: exit.promise,
    };
    const sandbox = {
      spawn: async () => process,
      dial: async () => {
        throw new Error("nobody listens");
      },
    } as unknown as Sandbox;
    this.start = {
      sandbox,
      tenant: "",
      user: { name: "user" } as User,
      env: {},
      cwd: "/",
      program: {
        path: "kernel",
        args: [],
        start: async (key) => {
          this.#key = key;
          return {};
        },
      },
      settings: {
        startTimeoutMs: 20_000,
        interruptGraceMs: 1000,
        maxMessageBytes: 1_000_000,
        maxErrorBytes: 1_000_000,
        heartbeat: { clock: fakeClock(), intervalMs: 1000, maxMisses: 3 },
        portLeases: new PortLeases({ firstPort: 20_000, maximum: 1 }),
        room: new MemoryRoom(2 ** 40),
        openChannels: () => ({
          send: async (channel, frames) => {
            const header = JSON.parse(String(frames[2])) as { msg_id: string; msg_type: string };
            this.sent.push({ channel, id: header.msg_id, type: header.msg_type });
          },
          receive: (channel) => this.#said[channel],
          close: async () => {
            for (const said of Object.values(this.#said)) said.end();
          },
        }),
      },
      log,
      isFrozen: () => false,
      onSilent: () => undefined,
      signal: this.#stop.signal,
    };
  }

  stop(): void {
    this.#stop.abort(new SandboxError("server_stopped", "the server stops"));
  }

  /** The request of a type with this index. @throws AssertionError when it does not come. */
  async asked(type: string, index = 0): Promise<Sent> {
    for (const endMs = performance.now() + ASKED_MS; performance.now() < endMs; await delay(1)) {
      const found = this.sent.filter((message) => message.type === type)[index];
      if (found !== undefined) return found;
    }
    return assert.fail(`it was not asked ${type}`);
  }

  end(): void {
    this.#exit.resolve({ code: 1 });
  }

  /** Simulates the server's detaching from the sandbox: the process may live on, unnoticed. */
  detach(): void {
    this.#isLeft = true;
    this.#outputEnd.resolve();
  }

  /** Replaces it by another kernel with another key. */
  replace(): void {
    this.#key = "of another kernel";
  }

  say(channel: ChannelName, type: string, parent: Sent, content: object): void {
    const parentHeader = { msg_id: parent.id, msg_type: parent.type };
    const parts = [{ msg_id: `said ${++this.#ids}`, msg_type: type }, parentHeader, {}, content];
    const [header, parentPart, metadata, contentPart] = parts.map((part) =>
      Buffer.from(JSON.stringify(part)),
    );
    assert.ok(header && parentPart && metadata && contentPart);
    const message = { header, parentHeader: parentPart, metadata, content: contentPart, buffers: [] };
    this.#said[channel].write(signedFrames(message, this.#key));
  }
}
