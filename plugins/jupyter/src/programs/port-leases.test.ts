import assert from "node:assert/strict";
import { randomInt } from "node:crypto";
import { once } from "node:events";
import { createServer, type Server } from "node:net";
import { after, afterEach, before, describe, it } from "node:test";
import { SandboxError } from "@coppice/core";
import type { Sandbox } from "@coppice/core/backend";
import { type InstalledKernelCommand, startInstalledKernel } from "../kernel/start-kernel.js";
import { isListening, type PortLease, PortLeases } from "./port-leases.js";
import type { KernelProcess } from "./kernel-process.js";
import { startCodeServer, type CodeServer } from "../testing/code-server.js";
import { REASONS } from "../reasons.js";

const never = new AbortController().signal;
const none = { code: "resource_exhausted", message: /^no ports are free for another kernel/ };

describe("the ports of installed kernels", { timeout: 60_000 }, () => {
  // A range that real kernels on this machine do not use.
  const firstPort = 11_000 + 20 * randomInt(400);
  const servers: Server[] = [];
  let own: CodeServer;
  let sandbox: Sandbox;

  before(async () => {
    own = await startCodeServer();
    sandbox = (await own.create()).live.runtime;
  });
  after(() => own[Symbol.asyncDispose]());
  afterEach(async () => {
    for (const server of servers.splice(0)) {
      server.close();
      // Waits until the client has disconnected.
      await once(server, "close");
    }
  });

  /** Accepts connections and never sends anything. */
  async function listen(port: number): Promise<void> {
    const server = createServer();
    servers.push(server);
    server.listen(port, "127.0.0.1");
    await once(server, "listening");
  }

  const portsOf = (leases: readonly PortLease[]): readonly number[] =>
    leases.flatMap(({ ports }) => Object.values(ports)).toSorted((one, other) => one - other);

  it("are valid ports", async () => {
    await assert.rejects(startCodeServer({ installedKernels: { firstPort: 60_000 } }), /beyond 65535/);
  });

  it("are never shared, and leasing fails when none are left", async () => {
    const leases = new PortLeases({ firstPort, maximum: 4 });
    const taken = await Promise.all(Array.from({ length: 4 }, () => leases.take(sandbox, never)));
    assert.deepEqual(
      portsOf(taken),
      Array.from({ length: 20 }, (_, index) => firstPort + index),
    );
    await assert.rejects(leases.take(sandbox, never), none);
    const [first] = taken;
    first?.[Symbol.dispose]();
    const next = await leases.take(sandbox, never);
    assert.deepEqual(next.ports, first?.ports);
    // A second dispose must not release the ports, which `next` has leased since.
    first?.[Symbol.dispose]();
    await assert.rejects(leases.take(sandbox, never), none);
  });

  it("are skipped when one of them has a listener", async () => {
    const leases = new PortLeases({ firstPort, maximum: 3 });
    await listen(firstPort + 3);
    await listen(firstPort + 10);
    const lease = await leases.take(sandbox, never);
    assert.deepEqual(
      portsOf([lease]),
      [5, 6, 7, 8, 9].map((offset) => firstPort + offset),
    );
    await assert.rejects(leases.take(sandbox, never), none);
    for (const server of servers.splice(0)) {
      server.close();
      await once(server, "close");
    }
    // They were passed over, not kept.
    for (let times = 0; times < 2; times += 1) await leases.take(sandbox, never);
  });

  it("are not leased when it is unknown whether they are free, and nothing stays leased then", async () => {
    const leases = new PortLeases({ firstPort, maximum: 1 });
    const lost = new SandboxError("sandbox_ended", "the sandbox has ended");
    await assert.rejects(leases.take({ dial: () => Promise.reject(lost) }, never), lost);
    // A time-out, which is no refused connection.
    const late = new SandboxError(REASONS.kernel_start_failed, "the kernel was not ready in time");
    const silent: Pick<Sandbox, "dial"> = {
      dial: async (_port, signal) => {
        await once(signal, "abort");
        throw signal.reason;
      },
    };
    const abort = new AbortController();
    const aborted = assert.rejects(leases.take(silent, abort.signal), late);
    abort.abort(late);
    await aborted;
    assert.ok(await isListening(silent, [firstPort], never), "a dial that does not end was not refused");
    await leases.take(sandbox, never);
  });

  it("are given back when the kernel ends, and when it was not started", async () => {
    const portLeases = new PortLeases({ firstPort, maximum: 1 });
    const start = async (change: Partial<InstalledKernelCommand> = {}): Promise<KernelProcess> => {
      const user = await sandbox.user();
      return startInstalledKernel({
        id: "of-a-test",
        sandbox,
        user,
        program: {
          name: "endless",
          displayName: "Endless",
          language: "endless",
          argv: ["sleep", "1000"],
          env: {},
          interruptMode: "signal",
        },
        env: { PATH: process.env["PATH"] ?? "" },
        cwd: user.home,
        key: "key",
        portLeases,
        signal: never,
        ...change,
      });
    };
    await assert.rejects(start({ cwd: "/does/not/exist" }), { code: "invalid_argument" });
    await assert.rejects(start({ id: "no/such/directory\0" }), { code: "invalid_argument" });
    await assert.rejects(start({ signal: AbortSignal.abort(new Error("not wanted")) }), /not wanted/);
    const { process: first } = await start();
    await assert.rejects(start(), none);
    await first.kill("SIGKILL", "group");
    await first.exit;
    const { process: second } = await start();
    await second.kill("SIGKILL", "group");
  });
});
