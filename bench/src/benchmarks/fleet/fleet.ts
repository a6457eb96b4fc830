import { eventually } from "@coppice/core/testing";
import { unpackFrames } from "@coppice/test/harness/clients/connect-frames.js";
import { BenchedFleet } from "../../kit/benched-fleet.js";
import type { BenchedServer } from "../../kit/benched-server.js";
import type { Benchmark, Comparison, Contender } from "../../kit/benchmark.js";
import type { BenchedSandbox, ServerClient } from "../../kit/server-client.js";
import { startOverConnect } from "../../kit/start-over-connect.js";

const CLIENTS = 16;
const MOST_BYTES = 64 * 2 ** 20;
const PORT = 38_211;

/** The same requests at the server that has a sandbox, and through another one of its fleet. */
export const fleet: Benchmark = async (alone, { backend, largeBytes }) => {
  const members = await BenchedFleet.start(backend);
  const { owner, foreign } = members;
  const bytes = Math.min(MOST_BYTES, largeBytes);
  const sandbox = await owner.createSandbox();
  const byItself = await alone.createSandbox();
  const download = await serveFile(owner, sandbox, bytes);

  const compared = (title: string, run: (server: ServerClient) => Contender["once"], size?: number) => {
    const contender = (label: string, server: ServerClient): Contender => ({
      label,
      once: run(server),
      ...(size !== undefined && { bytes: size }),
    });
    return {
      title: `fleet: ${title}`,
      floor: contender("at its own server", owner),
      contenders: [contender("through a foreign server", foreign)],
    };
  };
  const create = (server: ServerClient) => async () => {
    const made = await server.createSandbox();
    return { undo: () => server.killSandbox(made) };
  };
  const startTrue = (server: ServerClient, of: BenchedSandbox) => async (): Promise<void> => {
    const answer = await startOverConnect(server, of, { cmd: "true" });
    if (unpackFrames(answer.body).length < 3) throw new Error(`the command did not run: ${answer.text}`);
  };
  const output = (server: ServerClient) => async (): Promise<void> => {
    const cmd = { cmd: "head", args: ["-c", String(bytes), "/dev/zero"] };
    const { length } = (await startOverConnect(server, sandbox, cmd)).body;
    if (length < bytes) throw new Error(`${length} of ${bytes} bytes`);
  };
  const creation = compared("a sandbox, from the request to the answer", create);
  const many = (label: string, once: Contender["once"]): Contender => ({ label, once, atOnce: CLIENTS });
  const own = await owner.createSandbox();
  const clientsOf: Comparison = {
    title: `fleet: ${CLIENTS} clients that start commands`,
    floor: many("at one server without a fleet", startTrue(alone, byItself)),
    contenders: [
      many("at one server of the fleet", startTrue(owner, own)),
      many(
        "half of them through the foreign server",
        inTurns([owner, foreign].map((one) => startTrue(one, own))),
      ),
      many("on two servers, each at its own", inTurns([startTrue(owner, own), startTrue(alone, byItself)])),
    ],
  };
  return {
    comparisons: [
      {
        ...creation,
        contenders: [...creation.contenders, { label: "at a server without a fleet", once: create(alone) }],
      },
      compared("process.Process/Start true", (server) => startTrue(server, sandbox)),
      compared(`${bytes / 2 ** 20} MiB of a command's output`, output, bytes),
      compared(`${bytes / 2 ** 20} MiB from a port`, download, bytes),
      clientsOf,
    ],
    async close() {
      await members[Symbol.asyncDispose]();
      await alone.killSandbox(byItself);
    },
  };
};

/** Runs one of several by turns. */
function inTurns(all: readonly Contender["once"][]): Contender["once"] {
  let turn = 0;
  return () => {
    turn += 1;
    return (all[turn % all.length] as Contender["once"])();
  };
}

/** Has a program in the sandbox serve a file. */
async function serveFile(
  server: BenchedServer,
  sandbox: BenchedSandbox,
  bytes: number,
): Promise<(from: ServerClient) => () => Promise<void>> {
  const script = `mkdir -p served && cd served && head -c ${bytes} /dev/zero > file && exec python3 -m http.server ${PORT}`;
  const serving = startOverConnect(server, sandbox, { cmd: "/bin/sh", args: ["-c", script] });
  // It ends with its sandbox.
  serving.catch(() => undefined);
  const get = (from: ServerClient) => async (): Promise<void> => {
    const { body } = await from.request({ path: "/file", headers: sandbox.headers(PORT) }, 200);
    if (body.length !== bytes) throw new Error(`${body.length} of ${bytes} bytes`);
  };
  await eventually("the file is served", () =>
    get(server)().then(
      () => true,
      () => false,
    ),
  );
  return get;
}
