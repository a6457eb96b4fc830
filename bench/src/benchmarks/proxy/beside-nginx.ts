import { reasonWithoutNginx, serveByNginx } from "@coppice/test/harness/server/start-nginx.js";
import type { Benchmark } from "../../kit/benchmark.js";
import { KEPT, programSite, startNginxInside } from "../../kit/nginx-inside.js";
import { RepeatingClient } from "../../kit/repeating-client.js";

const AT_ONCE = 16;

/**
 * Small requests on kept connections to a program in a sandbox, which is an nginx, straight to it, through an nginx and
 * through the server. The first two use a program on the host.
 */
export const proxyBesideNginx: Benchmark = async (server) => {
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
  const clients = {
    direct: new RepeatingClient(portOf(program.url), "localhost"),
    nginx: new RepeatingClient(portOf(nginx.url), "localhost"),
    server: await startNginxInside(server, sandbox),
  };
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

function portOf(url: string): number {
  return Number(new URL(url).port);
}
