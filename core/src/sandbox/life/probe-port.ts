import { once } from "node:events";
import { type IncomingMessage, request as httpRequest } from "node:http";
import type { LiveSandbox } from "../model/live-sandbox.js";

export interface ProbedPort {
  readonly port: number;
  /** Asked for by `GET`, with a query, if any. Without a path the port is only connected to. */
  readonly path?: string | undefined;
}

/**
 * Connects to a port of a sandbox. @returns the status of its answer, 0 without a path. Redirects are not followed.
 * @throws SandboxError, or an error of the connection, when nothing answers.
 */
export async function probePort(
  { runtime }: Pick<LiveSandbox, "runtime">,
  { port, path }: ProbedPort,
  until: AbortSignal,
): Promise<number> {
  const stream = await runtime.dial(port, until);
  // Only the answer counts, not how the stream ends.
  stream.on("error", () => {});
  try {
    if (path === undefined) return 0;
    const request = httpRequest({
      createConnection: () => stream,
      headers: { "host": `localhost:${port}`, "user-agent": "coppice-readiness" },
      path,
      signal: until,
    });
    // Later errors do not count.
    request.on("error", () => {});
    request.end();
    const [response] = (await once(request, "response")) as [IncomingMessage];
    response.destroy();
    return response.statusCode ?? 0;
  } finally {
    stream.destroy();
  }
}
