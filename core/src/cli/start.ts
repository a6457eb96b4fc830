import { boot, type Server } from "../boot.js";
import { readConfig } from "../config/read.js";
import { configArgument } from "./config-argument.js";

/** Serves a configuration until a signal: the first one stops gracefully, the second one at once. */
export async function start(args: readonly string[]): Promise<number> {
  const server = await boot({ config: readConfig(configArgument(args), process.env) });
  process.stderr.write(greetingOf(server));
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

/** Where the server is, and what its plugins have to say. To stderr: stdout carries the log. */
function greetingOf({ listeners, greeting }: Server): string {
  const addresses = listeners.map(({ name, url }) => `  ${name.padEnd(6)} ${url}\n`).join("");
  return `Coppice serves\n${addresses}${greeting.map((line) => `${line}\n`).join("")}`;
}
