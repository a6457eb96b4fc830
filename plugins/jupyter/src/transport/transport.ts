import type { Logger } from "@coppice/core";
import type { OpenKernelChannels } from "./kernel-channels.js";
import { ZmtpChannels } from "./zmtp-channels.js";

/**
 * The transport to kernels: `zeromq` is the native library, for sandboxes whose ports have an address on the host. It
 * cannot use streams, so other sandboxes use our own client, as with `zmtp`, or where the library does not run.
 */
export async function openTransport(kind: "zmtp" | "zeromq", log: Logger): Promise<OpenKernelChannels> {
  const own: OpenKernelChannels = (options) => new ZmtpChannels(options);
  if (kind === "zmtp") return own;
  const library = await import("./zeromq-channels.js").catch((error: unknown) => {
    log.info({ err: error }, "the zeromq library does not run here; kernels are spoken to without it");
    return undefined;
  });
  if (library === undefined) return own;
  return ({ address, ...options }) =>
    address === undefined ? own(options) : new library.ZeromqChannels({ ...options, address });
}
