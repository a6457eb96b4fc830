import { tmpdir } from "node:os";
import type { OpenKernelChannels } from "./kernel-channels.js";
import { LONGEST_SOCKET_PATH } from "./relay.js";
import { openSocketDirectory } from "./socket-directory.js";
import { ZmtpChannels } from "./zmtp-channels.js";

/** What the server speaks to kernels with. */
export interface Transport {
  readonly openChannels: OpenKernelChannels;
  close(): Promise<void>;
}

const SOCKET_NAME_LENGTH = "/coppice-zmq-XXXXXX/0123456789ab-control".length;

/**
 * Nothing native is loaded, and nothing is made on disk, for `zmtp`.
 * @throws Error when the path is too long for a socket, or the native library does not run here.
 */
export async function openTransport(
  kind: "zmtp" | "zeromq",
  runDirectory: string = tmpdir(),
): Promise<Transport> {
  if (kind === "zmtp") {
    return { openChannels: async (options) => new ZmtpChannels(options), close: async () => undefined };
  }
  // The name of the directory and that of a socket in it come on top.
  if (runDirectory.length + SOCKET_NAME_LENGTH > LONGEST_SOCKET_PATH) {
    throw new Error(`jupyter.runDirectory: '${runDirectory}' is too long a path for a UNIX socket`);
  }
  const { ZeromqChannels } = await import("./zeromq-channels.js");
  const sockets = await openSocketDirectory(runDirectory);
  return {
    openChannels: (options) => ZeromqChannels.open(sockets.path, options),
    close: async () => {
      await sockets[Symbol.asyncDispose]();
    },
  };
}
