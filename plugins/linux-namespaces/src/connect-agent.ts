import { open } from "node:fs/promises";
import { constants } from "node:fs";
import type { Socket } from "node:net";
import { dirname } from "node:path";
import { connectSocket } from "@coppice/agent";

// Length of sun_path without its NUL.
const LONGEST_SOCKET_PATH = 107;

/** Connects to a UNIX socket whose path may exceed sun_path. */
export async function connectAgent(path: string, signal: AbortSignal): Promise<Socket> {
  if (Buffer.byteLength(path) <= LONGEST_SOCKET_PATH) return connectSocket(path, signal);
  await using directory = await open(dirname(path), constants.O_RDONLY | constants.O_DIRECTORY);
  return await connectSocket(`/proc/self/fd/${directory.fd}/${path.slice(dirname(path).length + 1)}`, signal);
}
