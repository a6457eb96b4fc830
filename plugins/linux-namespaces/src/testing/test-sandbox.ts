import { randomBytes } from "node:crypto";
import type { Exit, Sandbox, SandboxBackend, SandboxSpec } from "@coppice/core/backend";

/** Sends a byte and waits for the echo. */
const CLIENT = `
import socket, sys
connection = socket.socket()
connection.settimeout(1)
try:
    connection.connect((sys.argv[1], int(sys.argv[2])))
    connection.sendall(b"x")
    print("reached" if connection.recv(1) == b"x" else "closed")
except OSError as error:
    print(type(error).__name__)
`;
const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** Output (stdout and stderr) and exit of a script. */
export interface Ran {
  readonly exit: Exit;
  readonly output: string;
}

/** Creates a sandbox with Python that the test destroys. */
export async function makeSandbox(
  backend: SandboxBackend,
  specification: Partial<SandboxSpec> = {},
): Promise<Sandbox> {
  const id = `test${randomBytes(8).toString("hex")}`;
  const spec = {
    id,
    template: "code-interpreter-v1",
    limits: {},
    allowInternetAccess: false,
    ...specification,
  };
  return backend.provision(spec, new AbortController().signal);
}

/** Runs a shell script. */
export async function runScript(sandbox: Sandbox, script: string, user?: string): Promise<Ran> {
  const account = await sandbox.user(user);
  const env = { PATH, HOME: account.home, USER: account.name, E2B_SANDBOX_ID: sandbox.id };
  const started = await sandbox.spawn({
    path: "/bin/sh",
    args: ["-c", script],
    env,
    input: "none",
    ...(user !== undefined && { user }),
  });
  const pieces: Uint8Array[] = [];
  for await (const { data } of started.output) pieces.push(data);
  return { exit: await started.exit, output: Buffer.concat(pieces).toString() };
}

/** Tries to reach an echo server. @returns `reached`, or the error. */
export async function reach(sandbox: Sandbox, address: string, port: number): Promise<string> {
  const { output } = await runScript(sandbox, `python3 -c '${CLIENT}' ${address} ${port}`);
  return output.trim();
}
