import { randomBytes } from "node:crypto";
import { Agent } from "node:http";
import { exchange, type ExchangeOptions } from "@coppice/test/harness/clients/exchange.js";
import type { Benchmark, Contender } from "../../kit/benchmark.js";
import { startProgramOnPort } from "../../kit/program-on-port.js";

const LARGE_BYTES = 16 * 2 ** 20;
const AT_ONCE = 8;

/**
 * Requests to a port inside a sandbox, through the server and directly. Without isolation both reach the same
 * program.
 */
export const proxy: Benchmark = async (server) => {
  const sandbox = await server.createSandbox();
  const program = await startProgramOnPort(new URL("../../kit/echo-server.js", import.meta.url));
  const agent = new Agent({ keepAlive: true });
  const directUrl = `http://127.0.0.1:${program.port}`;
  const host = `${program.port}-${sandbox.id}.localhost`;
  const body = randomBytes(LARGE_BYTES);
  const large: ExchangeOptions = { method: "POST", path: "/echo", body };

  const direct = async (options: ExchangeOptions, bytes: number): Promise<void> => {
    expectBytes((await exchange(directUrl, { ...options, agent })).body, bytes);
  };
  const through = async (options: ExchangeOptions, bytes: number): Promise<void> => {
    expectBytes((await server.request({ ...options, headers: { host } }, 200)).body, bytes);
  };
  const small = (run: typeof direct, label: string, atOnce: number): Contender => ({
    label,
    atOnce,
    once: () => run({ path: "/" }, "hello".length),
  });
  return {
    comparisons: [
      ...[1, AT_ONCE].map((atOnce) => ({
        title: atOnce === 1 ? "proxy: a small request" : `proxy: ${atOnce} small requests at a time`,
        floor: small(direct, "straight to the port", atOnce),
        contenders: [small(through, "through the server", atOnce)],
      })),
      {
        title: `proxy: ${LARGE_BYTES / 2 ** 20} MiB there and back`,
        floor: { label: "straight to the port", bytes: LARGE_BYTES, once: () => direct(large, LARGE_BYTES) },
        contenders: [
          { label: "through the server", bytes: LARGE_BYTES, once: () => through(large, LARGE_BYTES) },
        ],
      },
    ],
    async close() {
      agent.destroy();
      await program.end();
      await server.killSandbox(sandbox);
    },
  };
};

function expectBytes({ length }: Buffer, bytes: number): void {
  if (length !== bytes) throw new Error(`received ${length} of ${bytes} bytes`);
}
