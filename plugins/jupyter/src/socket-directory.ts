import { lstat, mkdtemp, readdir, rm } from "node:fs/promises";
import { connect, createServer } from "node:net";
import { join } from "node:path";

const PREFIX = "coppice-zmq-";
/** Somebody listens here for as long as the directory is used. */
const IN_USE = "used";
/** What is younger may be about to be used. */
const SETTLED_MS = 60_000;

/** A private directory for UNIX sockets; disposed of, it is gone. */
export interface SocketDirectory extends AsyncDisposable {
  readonly path: string;
}

/**
 * Makes a directory (0700) below `parent`, and removes those that servers left there which are gone.
 * Whether one is used shows by a socket in it, so no pid has to be trusted.
 */
export async function openSocketDirectory(parent: string): Promise<SocketDirectory> {
  await removeAbandoned(parent);
  const path = await mkdtemp(join(parent, PREFIX));
  const server = createServer((socket) => socket.destroy());
  const { promise: listening, resolve, reject } = Promise.withResolvers<void>();
  server.once("error", reject);
  server.listen(join(path, IN_USE), resolve);
  try {
    await listening;
  } catch (error) {
    await rm(path, { recursive: true, force: true });
    throw error;
  }
  server.unref();
  return {
    path,
    async [Symbol.asyncDispose]() {
      const { promise: closed, resolve: close } = Promise.withResolvers<void>();
      server.close(() => close());
      await closed;
      await rm(path, { recursive: true, force: true });
    },
  };
}

async function removeAbandoned(parent: string): Promise<void> {
  const names = (await readdir(parent)).filter((name) => name.startsWith(PREFIX));
  for (const path of names.map((name) => join(parent, name))) {
    // Somebody else's, or gone since it was listed: neither is ours to remove.
    if (await isAbandoned(path)) await rm(path, { recursive: true, force: true }).catch(() => undefined);
  }
}

// The parent is often /tmp, where anybody can make a directory of such a name.
async function isAbandoned(path: string): Promise<boolean> {
  const stats = await lstat(path).catch(() => undefined);
  if (stats === undefined || !stats.isDirectory() || stats.uid !== process.getuid?.()) return false;
  const refusal = await knock(join(path, IN_USE));
  return refusal === "ECONNREFUSED" || (refusal === "ENOENT" && Date.now() - stats.mtimeMs > SETTLED_MS);
}

/** Why nobody opens, undefined when somebody does. */
async function knock(path: string): Promise<string | undefined> {
  const { promise, resolve } = Promise.withResolvers<string | undefined>();
  const socket = connect(path);
  socket.once("connect", () => resolve(undefined));
  socket.once("error", (error) => resolve("code" in error ? String(error.code) : error.message));
  try {
    return await promise;
  } finally {
    socket.destroy();
  }
}
