import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { secretEqual } from "@coppice/core";

/** An open gate. */
export interface RegistryGate extends AsyncDisposable {
  /** `127.0.0.1:<port>`. Its one repository is `image`. */
  readonly address: string;
  readonly username: string;
  readonly password: string;
  /** Reason for the first refusal, if there was one. The message is for the client. */
  readonly refusal: Error | undefined;
}

const USERNAME = "skopeo";

/**
 * Opens a registry on loopback for one program and one image.
 * @param serve answers a request that has the gate's account; what it throws is the refusal.
 */
export async function openLoopbackGate(
  serve: (request: IncomingMessage, response: ServerResponse) => Promise<void>,
): Promise<RegistryGate> {
  const password = randomBytes(24).toString("base64url");
  const expected = `Basic ${Buffer.from(`${USERNAME}:${password}`).toString("base64")}`;
  const state: { refusal: Error | undefined } = { refusal: undefined };
  const server = createServer((request, response) => {
    if (!secretEqual(expected, request.headers.authorization ?? "")) {
      response.writeHead(401, { "www-authenticate": 'Basic realm="gate"' }).end();
    } else if (request.url === "/v2/") response.writeHead(200).end();
    else {
      serve(request, response).catch((error: unknown) => {
        state.refusal ??= error instanceof Error ? error : new Error(String(error));
        if (response.headersSent) response.destroy();
        else response.writeHead(403).end();
      });
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return {
    address: `127.0.0.1:${port}`,
    username: USERNAME,
    password,
    get refusal() {
      return state.refusal;
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
}
