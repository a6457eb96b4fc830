import { unpackFrames } from "@coppice/test/harness/clients/connect-frames.js";
import type { Benchmark, Contender } from "../kit/benchmark.js";
import { spawnToEnd } from "../kit/spawn-to-end.js";
import { startOverConnect } from "../kit/start-over-connect.js";

const AT_ONCE = 8;
const LOOPS = 100;
const LOOP = `i=0; while [ $i -lt ${LOOPS} ]; do /bin/sh -c 'exec true'; i=$((i+1)); done`;

/** One command, from the request to its exit code, over a kept connection. */
export const exec: Benchmark = async (server) => {
  const sandbox = await server.createSandbox();
  const overConnect = async (): Promise<void> => {
    const answer = await startOverConnect(server, sandbox, { cmd: "true" });
    if (unpackFrames(answer.body).length < 3) throw new Error(`the command did not run: ${answer.text}`);
  };
  const overNdjson = (): Promise<void> => server.run(sandbox, "true");
  const spawnTrue = (): Promise<void> => spawnToEnd("true");
  const shellLoop = async () => {
    const startMs = performance.now();
    await spawnToEnd("/bin/sh", ["-c", LOOP]);
    return { tookMs: (performance.now() - startMs) / LOOPS };
  };
  const both = (atOnce: number): readonly Contender[] => [
    { label: "process.Process/Start true", once: overConnect, atOnce },
    { label: "POST /commands true", once: overNdjson, atOnce },
  ];
  return {
    comparisons: [
      {
        title: "exec: a command, from the request to its exit code",
        floor: { label: "child_process.spawn('true') in one process", once: spawnTrue },
        contenders: [...both(1), { label: "/bin/sh -c 'exec true' in a loop of a shell", once: shellLoop }],
      },
      {
        title: `exec: ${AT_ONCE} commands at a time`,
        floor: { label: "child_process.spawn('true') in one process", once: spawnTrue, atOnce: AT_ONCE },
        contenders: both(AT_ONCE),
      },
    ],
    close: () => server.killSandbox(sandbox),
  };
};
