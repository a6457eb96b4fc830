import { createServer, type Socket } from "node:net";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import { messageOf, printFailure, printLine } from "@coppice/core/client";
import type { Sandbox } from "e2b";
import { attach } from "../connection/attach.js";
import { connectionOf, type ServerOptions } from "../connection/connection.js";
import { describeSandbox, openSandbox } from "../connection/open-sandbox.js";

// Bash gives a background command no standard input unless it is another descriptor.
const TUNNEL = 'exec 3<>"/dev/tcp/127.0.0.1/$1" 4<&0 && { cat <&4 >&3 & cat <&3; kill $! 2>/dev/null; }';

interface ForwardOptions extends ServerOptions {
  readonly address: string;
}

/** Ports of a sandbox, as ports of this machine, for any protocol over TCP: until Ctrl-C. */
export async function portForward(
  id: string,
  ports: readonly string[],
  { address, ...server }: ForwardOptions,
): Promise<number> {
  const sandbox = await openSandbox(id, server);
  const stopping = new AbortController();
  const { promise: stopped, resolve: stop } = Promise.withResolvers<void>();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => stop());
  const listeners = ports.map((text) => {
    const [local = "", inside = local] = text.split(":");
    const listener = createServer({ allowHalfOpen: true }, (socket) => {
      tunnel(sandbox, { socket, port: inside, signal: stopping.signal }).catch((error: unknown) => {
        if (!stopping.signal.aborted) printFailure(`port ${inside}: ${messageOf(error)}`);
        socket.destroy();
      });
    });
    return { listener, local: Number(local), inside };
  });
  try {
    for (const { listener, local, inside } of listeners) {
      await once(listener.listen(local, address), "listening");
      const { port } = listener.address() as { readonly port: number };
      printLine(`${address}:${port} is port ${inside} of ${id}`);
    }
    await stopped;
  } finally {
    stopping.abort();
    for (const { listener } of listeners) listener.close();
  }
  return 0;
}

interface Tunnel {
  readonly socket: Socket;
  readonly port: string;
  readonly signal: AbortSignal;
}

/** Carries one connection by a program in the sandbox. */
async function tunnel(sandbox: Sandbox, { socket, port, signal }: Tunnel): Promise<void> {
  const ending = new AbortController();
  socket.on("error", () => undefined);
  socket.on("close", () => ending.abort());
  const complaints = new PassThrough();
  let told = "";
  complaints.on("data", (chunk: Buffer) => (told = (told + chunk.toString()).slice(0, 500)));
  const program = { cmd: "/bin/bash", args: ["-c", TUNNEL, "tunnel", port] };
  const streams = { input: socket, stdout: socket, stderr: complaints };
  const code = await attach(sandbox, program, {
    ...streams,
    signal: AbortSignal.any([signal, ending.signal]),
  });
  socket.end();
  if (code !== 0 && told !== "") throw new Error(told.trim());
}

/** Prints the URL of a port, and with `--browser` opens it. */
export async function open(
  id: string,
  port: number,
  { browser, ...server }: ServerOptions & { readonly browser?: true | undefined },
): Promise<number> {
  const domain = (await describeSandbox(id, server)).domain ?? process.env["E2B_DOMAIN"];
  if (domain === undefined)
    throw new Error("this server has no domain for ports of sandboxes; coppice port-forward reaches them");
  const scheme = connectionOf(server).apiUrl?.startsWith("http:") ? "http" : "https";
  const url = new URL(`${scheme}://${port}-${id}.${domain}`).href;
  printLine(url);
  if (!browser) return 0;
  const program = process.platform === "darwin" ? "open" : "xdg-open";
  return new Promise((resolve) => {
    execFile(program, [url], (error) => {
      if (error !== null) printFailure(`${program}: ${messageOf(error)}`);
      resolve(error === null ? 0 : 1);
    });
  });
}
