import { agentBinary } from "../agent-binary.js";

/** What the same tests run against: the program, where it was built, and the Node process in its place. */
export const agentKinds: readonly {
  readonly name: string;
  readonly binary: string;
  readonly skip: string | false;
}[] = [
  {
    name: "the binary",
    binary: agentBinary() ?? "",
    skip: agentBinary() ? false : "the agent was not built",
  },
  { name: "the Node process", binary: "node", skip: false },
];

/** For tests that need the program: why they cannot run, or false. */
export const withoutBinary: string | false = agentBinary() ? false : "the agent was not built";

/** For tests that need root: why they cannot run, or false. */
export const withoutRoot: string | false = withoutBinary || (process.getuid?.() === 0 ? false : "needs root");
