import { once } from "node:events";
import { createServer, type Server } from "node:net";
import type { ServerConfig } from "./server-schema.js";
import { messageOf } from "../kernel/errors.js";
import type { NamedFinding } from "../observe/finding.js";

const FIXES: Readonly<Record<string, (name: string) => string>> = {
  EADDRINUSE: (name) => `stop what listens there, or set listeners.${name}.port to another port`,
  EACCES: (name) => `start as root, give Node cap_net_bind_service, or set listeners.${name}.port above 1023`,
  EADDRNOTAVAIL: (name) => `set listeners.${name}.host to an address of this host`,
};

/** Finds out which listener addresses are free, by listening at each for a moment. */
export async function examineListeners(
  listeners: ServerConfig["listeners"],
): Promise<readonly NamedFinding[]> {
  const held: Server[] = [];
  const findings: NamedFinding[] = [];
  try {
    for (const [key, { host, port }] of Object.entries(listeners)) {
      const name = `listener ${key}`;
      const address = `${host.includes(":") ? `[${host}]` : host}:${port}`;
      const server = createServer();
      held.push(server);
      try {
        server.listen({ host, port, exclusive: true });
        await once(server, "listening");
        const message = port === 0 ? `any port of ${host}` : `${address} is free`;
        findings.push({ name, severity: "ok", message });
      } catch (error) {
        const { code = "" } = error as NodeJS.ErrnoException;
        const message = `${address} cannot be had: ${messageOf(error)}`;
        findings.push({ name, severity: "fail", message, fix: FIXES[code]?.(key) });
      }
    }
  } finally {
    for (const server of held) server.close();
  }
  return findings;
}
