import { tmpdir } from "node:os";
import { DEFAULT_PATH, runToEnd } from "@coppice/core/backend";
import { type Examination, type Finding, messageOf, BoundedBytes } from "@coppice/core";
import type { HostAgent } from "./host-agent.js";

const ANSWER_BYTES = 4096;
const QUESTION = `
import platform
import ipykernel
print("Python " + platform.python_version() + " with ipykernel " + ipykernel.__version__)`;

interface HostQuestions {
  readonly agent: HostAgent;
  /** Interpreter of the sandboxes: a path, or a name in PATH. */
  readonly python: string;
}

/**
 * Findings of `coppice doctor` for this host: the program that starts processes, and the kernels of the code
 * interpreter.
 */
export async function diagnoseHost(
  { agent, python }: HostQuestions,
  { plugins, signal }: Examination,
): Promise<readonly Finding[]> {
  const findings = [describeAgent(agent.binary)];
  if (plugins.has("jupyter")) findings.push(await describePython(agent, python, signal));
  return findings;
}

function describeAgent(binary: string | undefined): Finding {
  if (binary !== undefined) return { severity: "ok", message: `programs are started by ${binary}` };
  return {
    severity: "warn",
    message:
      "the agent has not been built: a Node process starts programs in its place, slower and without terminals",
    fix:
      process.env["COPPICE_AGENT"] === undefined
        ? "install a C compiler (Debian: apt-get install gcc libc6-dev; FreeBSD has one in its base system) and run `npm run setup`"
        : "set COPPICE_AGENT to a program that can be run, or not at all",
  };
}

async function describePython(agent: HostAgent, python: string, signal: AbortSignal): Promise<Finding> {
  try {
    return { severity: "ok", message: `${python} is ${await askPython(agent, python, signal)}` };
  } catch (error) {
    return {
      severity: "fail",
      message: `the code interpreter cannot use ${python}: ${messageOf(error)}`,
      fix: "install ipykernel for it (Debian: apt-get install python3-ipykernel; FreeBSD: pkg install py311-ipykernel), or name another interpreter as local-process.python",
    };
  }
}

/** @throws Error with the last line of the interpreter's output. */
async function askPython(agent: HostAgent, python: string, signal: AbortSignal): Promise<string> {
  const asked = await agent.spawn({
    path: python,
    args: ["-I", "-c", QUESTION],
    env: { PATH: DEFAULT_PATH },
    cwd: tmpdir(),
    input: "none",
  });
  const output = new BoundedBytes(ANSWER_BYTES, "last");
  const { code } = await runToEnd(asked, { signal, onOutput: ({ data }) => output.push(data) });
  const said = output.text.trim().split("\n").at(-1) ?? "";
  if (code !== 0) throw new Error(said === "" ? "it failed without output" : said);
  return said;
}
