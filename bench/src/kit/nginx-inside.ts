import { eventually, freePort } from "@coppice/core/testing";
import { nginxConfiguration } from "@coppice/test/harness/server/start-nginx.js";
import { RepeatingClient } from "./repeating-client.js";
import type { BenchedSandbox, ServerClient } from "./server-client.js";

export const KEPT = "keepalive_requests 100000000;";
const SCRIPT =
  'cd "$(mktemp -d)" && mkdir logs && printf %s "$1" >conf && nginx -p "$PWD" -c "$PWD/conf" >/dev/null 2>&1 &';

/** The site of a program that answers five bytes, and keeps its connections. */
export function programSite(port: number): string {
  return `server { listen 127.0.0.1:${port}; ${KEPT} location / { return 200 "hello"; } }\n`;
}

/** Starts an nginx with that site in a sandbox. @returns a client of it through the server, once it answers. */
export async function startNginxInside(
  server: ServerClient,
  sandbox: BenchedSandbox,
): Promise<RepeatingClient> {
  const port = await freePort();
  await server.run(sandbox, "sh", ["-c", SCRIPT, "sh", nginxConfiguration(programSite(port), ".")]);
  const client = new RepeatingClient(Number(new URL(server.url).port), `${port}-${sandbox.id}.localhost`);
  await eventually("the program in the sandbox answers", () =>
    client.ask().then(
      () => true,
      () => false,
    ),
  );
  return client;
}
