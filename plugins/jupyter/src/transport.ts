import type { OpenKernelChannels } from "./kernel-channels.js";
import { ZmtpChannels } from "./zmtp-channels.js";

/**
 * What the server speaks to kernels with: `zeromq` is the native library, for sandboxes whose ports have an address of
 * the host. It cannot use the streams that all others give, so those are left to the client of our own, as everything
 * is for `zmtp`.
 * @throws Error when the native library does not run here; for `zmtp` it is not loaded.
 */
export async function openTransport(kind: "zmtp" | "zeromq"): Promise<OpenKernelChannels> {
  if (kind === "zmtp") return (options) => new ZmtpChannels(options);
  const { ZeromqChannels } = await import("./zeromq-channels.js");
  return ({ address, ...options }) =>
    address === undefined ? new ZmtpChannels(options) : new ZeromqChannels({ ...options, address });
}
