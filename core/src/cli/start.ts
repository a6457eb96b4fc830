import { boot } from "../boot.js";
import { readConfig } from "../config/read.js";
import type { HttpListener } from "../http/listener.js";
import { configArgument } from "./config-argument.js";

/** Serves a configuration until a signal: the first one stops gracefully, the second one at once. */
export async function start(args: readonly string[]): Promise<number> {
  const server = await boot({ config: readConfig(configArgument(args), process.env) });
  process.stderr.write(greeting(server.listeners));
  const { promise: stopped, resolve } = Promise.withResolvers<number>();
  let isStopping = false;
  const onSignal = (signal: NodeJS.Signals): void => {
    if (isStopping) process.exit(signal === "SIGINT" ? 130 : 143);
    isStopping = true;
    server.log.info({ signal }, "stopping; a second signal stops at once");
    void server.stop().then((failures) => {
      for (const { owner, error } of failures)
        server.log.error({ plugin: owner, err: error }, "stop went wrong");
      resolve(failures.length === 0 ? 0 : 1);
    });
  };
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  try {
    return await stopped;
  } finally {
    process.off("SIGINT", onSignal);
    process.off("SIGTERM", onSignal);
  }
}

/** Where the server is, and the lines that point an SDK at it. To stderr: stdout carries the log. */
function greeting(listeners: readonly HttpListener[]): string {
  const addresses = listeners.map(({ name, url }) => `  ${name.padEnd(6)} ${url}\n`).join("");
  const api = listeners.find(({ name }) => name === "api");
  if (api === undefined) return `Coppice serves\n${addresses}`;
  return (
    `Coppice serves\n${addresses}\nPoint the E2B SDKs at it:\n` +
    `  export E2B_API_URL=${api.url}\n  export E2B_SANDBOX_URL=${api.url}\n  export E2B_API_KEY=<one of the keys of plugins.sandbox-api.apiKeys>\n`
  );
}
