import { chmod, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { agentBinary } from "@coppice/agent";
import { MemoryLeases } from "@coppice/core/testing";
import { AddressPool } from "../network/address-pool.js";
import { Host, type HostProgram } from "../host/host.js";
import { jailFreebsdConfig, type JailSettings } from "../jail-freebsd-config.js";

/** A recorded call of a program: its arguments and stdin. */
export interface HostCall {
  readonly program: string;
  readonly args: readonly string[];
  readonly input: string;
}

/** A host whose programs only record their calls. */
export interface RecordingHost extends AsyncDisposable {
  readonly host: Host;
  /** Settings of a backend on it. */
  readonly settings: JailSettings;
  /** Unused addresses. */
  readonly addresses: AddressPool;
  /** Calls since the last request. */
  calls(): Promise<readonly HostCall[]>;
  /** Sets the output of a program that exits with 0. */
  answer(program: HostProgram, stdout: string): Promise<void>;
}

/** Reason why there is no recording host here; undefined when there is. */
export function reasonWithoutRecordingHost(): string | undefined {
  return agentBinary() === undefined ? "the agent has not been built: there is no C compiler" : undefined;
}

/** Builds the host from shell scripts and the real agent. */
export async function openRecordingHost(settings: object = {}): Promise<RecordingHost> {
  const directory = await mkdtemp(join(tmpdir(), "cr-"));
  const log = join(directory, "log");
  const names = Object.keys(jailFreebsdConfig.parse({}).programs) as HostProgram[];
  const programs = Object.fromEntries(names.map((name) => [name, join(directory, name)]));
  await writeFile(log, "");
  const answers = (name: string) => join(directory, `${name}.out`);
  for (const name of names) {
    // Every field ends with NUL, which no argument can contain; an empty field ends the call.
    const script = `#!/bin/sh
{
  printf '%s\\0' ${name} "$#" "$@"
  ${name === "pfctl" ? "cat" : name === "jail" ? '[ "$3" != - ] || cat' : ":"}
  printf '\\0\\n\\0'
} >> ${log}
cat ${answers(name)}
`;
    // A kernel without parameters of jails is refused.
    await writeFile(answers(name), name === "sysctl" ? "security.jail.param.allow.mount.\n" : "");
    await writeFile(join(directory, name), script);
    await chmod(join(directory, name), 0o755);
  }
  const parsed = jailFreebsdConfig.parse({ ...settings, directory: join(directory, "d"), programs });
  const silent = { debug: () => undefined, warn: () => undefined };
  const host = new Host({
    programs: parsed.programs,
    agent: agentBinary() ?? "",
    socket: join(directory, "host.sock"),
    timeoutMs: 30_000,
    outputLimitBytes: parsed.hostOutputLimit,
    log: silent,
  });
  return {
    host,
    settings: parsed,
    addresses: new AddressPool({ range: parsed.network.range, leases: new MemoryLeases().of("recording") }),
    calls: async () => {
      const text = await readFile(log, "utf8");
      await writeFile(log, "");
      return parse(text);
    },
    answer: (program, stdout) => writeFile(answers(program), stdout),
    async [Symbol.asyncDispose]() {
      await host.close({ isEmpty: true });
      await rm(directory, { recursive: true });
    },
  };
}

function parse(text: string): readonly HostCall[] {
  const fields = text.split("\0");
  const calls: HostCall[] = [];
  for (let at = 0; at + 1 < fields.length;) {
    const [program = "", count = "0"] = fields.slice(at, at + 2);
    const end = at + 2 + Number(count);
    calls.push({ program, args: fields.slice(at + 2, end), input: fields[end] ?? "" });
    at = end + 2;
  }
  return calls;
}
