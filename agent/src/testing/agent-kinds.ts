import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { agentBinary } from "../built/agent-binary.js";

/** An agent for which the same tests run. */
export interface AgentKind {
  readonly name: string;
  readonly binary: string;
  readonly skip: string | false;
}

/** Reason why tests that need the program cannot run, or false. */
export const withoutBinary: string | false = agentBinary() ? false : "the agent was not built";

/** Reason why tests that need root cannot run, or false. */
export const withoutRoot: string | false = withoutBinary || (process.getuid?.() === 0 ? false : "needs root");

/** The built program: plain, and one that starts programs through another. */
export const binaryKinds: readonly AgentKind[] = [
  { name: "the binary", binary: agentBinary() ?? "", skip: withoutBinary },
  {
    name: "the binary that goes through another program",
    binary: makeScript(`exec ${agentBinary()} "$@" /usr/bin/env -i ${agentBinary()} launch 3`),
    skip: withoutBinary,
  },
];

/** The built programs, and the Node process instead of them. */
export const agentKinds: readonly AgentKind[] = [
  ...binaryKinds,
  { name: "the Node process", binary: "node", skip: false },
];

function makeScript(script: string): string {
  const directory = mkdtempSync(join(tmpdir(), "coppice-agent-"));
  process.once("exit", () => rmSync(directory, { recursive: true }));
  const path = join(directory, "agent.sh");
  writeFileSync(path, `#!/bin/sh\n${script}\n`);
  chmodSync(path, 0o755);
  return path;
}
