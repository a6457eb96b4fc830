import { nginxConfiguration, reasonWithoutNginx, serveByNginx } from "../../harness/server/start-nginx.js";
import { freePort } from "@coppice/core/testing";
import { eventually } from "../../harness/host/eventually.js";
import type { Benchmark } from "../kit/benchmark.js";
import { RepeatingClient } from "../kit/repeating-client.js";
import type { BenchedServer } from "../kit/benched-server.js";
import type { BenchedSandbox } from "../kit/server-client.js";

const AT_ONCE = 16;
const KEPT = "keepalive_requests 100000000;";
const DIRECTORY = "/tmp/nginx";

/**
 * Small requests on kept connections to a program in a sandbox, which is an nginx, straight to it, through an nginx and
 * through the server. The first two use a program on the host.
 */
export const proxyBesideNginx: Benchmark = async (server, { backend }) => {
  if (reasonWithoutNginx !== undefined)
    return { comparisons: [], notes: [`proxy-nginx: ${reasonWithoutNginx}`], close: async () => undefined };
  const sandbox = await server.createSandbox();
  const program = await serveByNginx(programSite);
  const { host } = new URL(program.url);
  const nginx = await serveByNginx(
    (port) =>
      `upstream program { server ${host}; keepalive 64; ${KEPT} }\nserver { listen 127.0.0.1:${port}; ${KEPT}\n` +
      `location / { proxy_pass http://program; proxy_http_version 1.1; proxy_set_header Connection "";\n` +
      `proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; } }\n`,
  );
  const port = backend === "local-process" ? portOf(program.url) : await startInside(server, sandbox);
  const clients = {
    direct: new RepeatingClient(portOf(program.url), "localhost"),
    nginx: new RepeatingClient(portOf(nginx.url), "localhost"),
    server: new RepeatingClient(portOf(server.url), `${port}-${sandbox.id}.localhost`),
  };
  await eventually("the program in the sandbox answers", () =>
    clients.server.ask().then(
      () => true,
      () => false,
    ),
  );
  return {
    comparisons: [1, AT_ONCE].map((atOnce) => ({
      title: `proxy-nginx: ${atOnce} small requests at a time, on kept connections`,
      floor: { label: "straight to the port", atOnce, once: () => clients.direct.ask() },
      contenders: [
        { label: "through nginx", atOnce, once: () => clients.nginx.ask() },
        { label: "through the server", atOnce, once: () => clients.server.ask() },
      ],
    })),
    async close() {
      for (const client of Object.values(clients)) client.close();
      await nginx[Symbol.asyncDispose]();
      await program[Symbol.asyncDispose]();
      await server.killSandbox(sandbox);
    },
  };
};

function programSite(port: number): string {
  return `server { listen 127.0.0.1:${port}; ${KEPT} location / { return 200 "hello"; } }\n`;
}

/** Starts the program in a sandbox that has a network of its own. @returns its port. */
async function startInside(server: BenchedServer, sandbox: BenchedSandbox): Promise<number> {
  const port = await freePort();
  const text = nginxConfiguration(programSite(port), DIRECTORY);
  const script = `mkdir -p ${DIRECTORY}/logs; printf %s "$1" > ${DIRECTORY}/conf; nginx -p ${DIRECTORY} -c ${DIRECTORY}/conf >/dev/null 2>&1 &`;
  await server.run(sandbox, "sh", ["-c", script, "sh", text]);
  return port;
}

function portOf(url: string): number {
  return Number(new URL(url).port);
}
