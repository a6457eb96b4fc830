import { BenchedServer } from "../kit/benched-server.js";
import type { Benchmark } from "../kit/benchmark.js";
import { startOverConnect } from "../kit/start-over-connect.js";
import { V1_SETTINGS, V1Client } from "../kit/v1-client.js";

/** A durable command, from its POST to the end of its followed log. */
export const v1Command: Benchmark = async (_server, { backend }) => {
  const server = await BenchedServer.start(backend, { settings: V1_SETTINGS });
  const sandbox = await server.createSandbox();
  const client = new V1Client(server, sandbox);
  const overConnect = async (): Promise<void> => {
    await startOverConnect(server, sandbox, { cmd: "true" });
  };
  const overV1 = async (): Promise<void> => client.follow(await client.start(["true"]));
  return {
    comparisons: [
      {
        title: "v1-command: a durable command, from its POST to the end of its followed log",
        floor: { label: "process.Process/Start true", once: overConnect },
        contenders: [{ label: "POST /v1/…/commands true, followed", once: overV1 }],
      },
    ],
    close: () => server[Symbol.asyncDispose](),
  };
};
