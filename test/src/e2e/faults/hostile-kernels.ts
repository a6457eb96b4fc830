import { once } from "node:events";
import { setTimeout as delay } from "node:timers/promises";
import { WebSocket } from "ws";
import type { HostileInput, World } from "./hostile-inputs.js";

const JUPYTER_PORT = 8888;
const CODE_PORT = 49999;
/** Most that a client's message may have without its buffers, but for what surrounds the content. */
const FRAME_BYTES = 4 * 1024 * 1024 - 1024;
const KERNEL_BYTES = 8_000_000;
const FLOOD_MS = 300;
const FIRST_MS = 20_000;

/**
 * A kernel in the sandbox that publishes messages with a content again and again. `/execute` reads them, as JupyterLab
 * does over a WebSocket.
 * @param content in Python, bytes of what should be JSON.
 */
const kernel = (name: string, content: string): HostileInput => ({
  name: `a kernel's ${name}`,
  async send(world) {
    const over = new AbortController();
    const socket = channelsOf(world);
    let bytes = 0;
    const taken = Promise.withResolvers<void>();
    const take = (piece: Uint8Array): void => {
      bytes += piece.length;
      taken.resolve();
    };
    const code = `
import threading
kernel = get_ipython().kernel
session, thread = kernel.session, kernel.iopub_thread
frames = session.serialize(session.msg("stream", {}, parent=kernel.get_parent("shell")), ident=[b"x"])
frames[6] = ${content}
frames[2] = session.sign(frames[3:7])
print("begun", flush=True)
while True:
    for _ in range(max(1, 100_000 // len(frames[6]))): thread.send_multipart(frames)
    sent = threading.Event()
    thread.schedule(sent.set)
    sent.wait()
`;
    const execution = fetch(`${world.server.url}/execute`, {
      method: "POST",
      headers: { ...headersFor(world, CODE_PORT), "content-type": "application/json" },
      body: JSON.stringify({ code, context_id: world.kernel }),
      signal: over.signal,
    }).then(async ({ body }) => {
      for await (const piece of body ?? []) take(piece);
    });
    const ended = execution.catch(() => undefined);
    await Promise.race([taken.promise, ended, delay(FIRST_MS, undefined, { ref: false })]);
    await delay(FLOOD_MS);
    over.abort();
    socket.terminate();
    await ended;
    if (bytes === 0) throw new Error("the kernel sent nothing");
  },
});

/** A client of Jupyter that sends a message again and again. */
const client = (name: string, content: string): HostileInput => ({
  name: `${name} to a kernel`,
  async send(world, signal) {
    const header = { msg_id: "held", msg_type: "comm_msg", session: "s" };
    const message = `{"channel":"shell","header":${JSON.stringify(header)},"content":${content}}`;
    do {
      const socket = channelsOf(world);
      const closed = once(socket, "close");
      await Promise.race([once(socket, "open"), closed]);
      while (socket.readyState === WebSocket.OPEN) {
        socket.send(message);
        // The server answers it when it has read the message.
        socket.ping();
        await Promise.race([once(socket, "pong"), closed]);
        if (signal.aborted) socket.terminate();
      }
    } while (!signal.aborted);
  },
});

function channelsOf(world: World): WebSocket {
  const url = `${world.server.url.replace("http", "ws")}/api/kernels/${world.kernel}/channels`;
  const socket = new WebSocket(url, { headers: headersFor(world, JUPYTER_PORT) });
  socket.on("error", () => undefined);
  return socket;
}

function headersFor({ sandbox, token }: World, port: number): Record<string, string> {
  return {
    "e2b-sandbox-id": sandbox.sandboxId,
    "e2b-sandbox-port": String(port),
    "x-access-token": token,
  };
}

export const HOSTILE_KERNELS: readonly HostileInput[] = [
  kernel("deep messages", `b'{"a":' + b"[" * ${KERNEL_BYTES / 2} + b"]" * ${KERNEL_BYTES / 2} + b"}"`),
  kernel("messages of many values", `b'{"a":[' + b"1," * ${KERNEL_BYTES / 2} + b"1]}"`),
  client("messages of escapes", `{"a":"${"\\n".repeat(FRAME_BYTES / 2)}"}`),
  client("messages of many values", `{"a":[${"1,".repeat(FRAME_BYTES / 2)}1]}`),
];
