import { once } from "node:events";
import { type Socket, connect } from "node:net";
import { SandboxError, messageOf } from "@coppice/core";

/** Address on which programs listen that only this host is to reach. */
export const LOOPBACK_ADDRESS = "127.0.0.1";
const LOOPBACK = [LOOPBACK_ADDRESS, "::1"];

/**
 * Connects to a port on one of this host's loopback addresses.
 * @throws SandboxError failed_precondition when no process listens there, or the signal's reason.
 */
export async function dialLoopback(port: number, signal: AbortSignal): Promise<Socket> {
  let reason: unknown;
  for (const host of LOOPBACK) {
    signal.throwIfAborted();
    const socket = connect({ host, port, noDelay: true, allowHalfOpen: true });
    try {
      await once(socket, "connect", { signal });
      return socket;
    } catch (error) {
      socket.destroy();
      signal.throwIfAborted();
      reason ??= error;
    }
  }
  throw new SandboxError("port_closed", `cannot connect to port ${port}: ${messageOf(reason)}`, {
    cause: reason,
  });
}
