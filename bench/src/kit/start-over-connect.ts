import { packFrame } from "@coppice/test/harness/clients/connect-frames.js";
import type { Answer } from "@coppice/test/harness/clients/exchange.js";
import type { BenchedSandbox, ServerClient } from "./server-client.js";

const ENVD_PORT = 49_983;

/** Starts a program by `process.Process/Start` as JSON, as the SDKs do. @returns its answer, when it has ended. */
export function startOverConnect(
  server: ServerClient,
  sandbox: BenchedSandbox,
  process: { readonly cmd: string; readonly args?: readonly string[] },
): Promise<Answer> {
  return server.request(
    {
      method: "POST",
      path: "/process.Process/Start",
      headers: {
        ...sandbox.headers(ENVD_PORT),
        "content-type": "application/connect+json",
        "connect-protocol-version": "1",
      },
      body: packFrame(JSON.stringify({ process, stdin: false })),
    },
    200,
  );
}
