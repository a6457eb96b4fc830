import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { API_KEY } from "../../harness/server/api-key.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { COPPICE } from "../../harness/server/server-process.js";
import { type FullServerOptions, startFullServer } from "../../harness/server/start-full-server.js";

const run = promisify(execFile);
const DOMAIN = "dev.localhost";
const client = (name: string) => fileURLToPath(new URL(`../../../src/e2e/sdk/${name}`, import.meta.url));

/** Interpreters that the set-up of `npm test` creates if PyPI is reachable, and differences between their SDKs. */
const SDKS = [
  {
    what: "the newest Python SDK",
    python: process.env["COPPICE_PYTHON_SDK_NEWEST"],
    // What succeeded has no error. An empty one on the wire would be "" here.
    noError: null,
    killed: true,
    input: { stdout: true, pty: 6, missing: "NotFoundException" },
  },
  {
    what: "a Python SDK two years older",
    python: process.env["COPPICE_PYTHON_SDK_OLDER"],
    // This SDK shows an absent text as an empty one, and its `kill` returns nothing.
    noError: "",
    killed: null,
    // StreamInput was added later.
    input: null,
  },
] as const;

const found = ({ noError, killed, input }: (typeof SDKS)[number]) => ({
  commands: {
    stdout: "out",
    stderr: "größer\n",
    error: noError,
    in_tmp: true,
    streamed: true,
    failed: { exit_code: 43, stdout: "before\n", stderr: "", error: "exit status 43" },
    background: { exit_code: 3, stdout: "got a line\n", stderr: "", error: "exit status 3" },
    listed: true,
    killed: [true, -1, false],
    timeout: "TimeoutException",
  },
  terminal: { resized: true, exit_code: 4, killed: [true, false] },
  input,
  files: {
    text: "größer",
    binary: true,
    renamed: "renamed.txt",
    names: ["binary", "renamed.txt"],
    made: [true, false],
    missing: "NotFoundException",
    gone: true,
  },
  watch: {
    made: ["create", "chmod", "write"].map((type) => ["new.txt", type]),
    gone: ["remove"],
  },
  urls: "by url",
  code: {
    text: "42",
    stdout: ["hi\n"],
    printed: ["hi\n"],
    error: ["ZeroDivisionError", "division by zero"],
    traceback: true,
    // As Python writes it, without the quotes around it.
    envs: 'it\\\'s "so"',
    bash: ["42\n"],
    timeout: "TimeoutException",
    next: "6",
    rig: {
      hello: ["hello\n"],
      set: [[], 0],
      read: ["42\n"],
      array: [["array([1, 2, 3])", true]],
      frame: true,
      png: "89504e470d0a1a0a",
      error: ["NameError", "name 'undefined_variable' is not defined", true],
    },
    contexts: { cwd: "/tmp", apart: "False", crash: "ContextRestarting", after: "False" },
  },
  running: true,
  connected: "again\n",
  killed: [killed, false],
  running_after: false,
  stranger: "Cannot get the team for the given API key",
});

/** Expected results of both kinds of clients after pauses that keep only files. */
const PAUSED = {
  on_request: {
    paused: [true, false],
    ended: true,
    state: "paused",
    running: false,
    metadata: { kept: "yes" },
    note: "kept",
    envs: "too\n",
    processes: 0,
    forgotten: "NameError",
    same_token: "42",
    restored: "43",
    rebooted: "NameError",
    note_after: "kept",
  },
  timeout: { paused: true, left: "kept\ngone\n" },
};

/**
 * Runs a program that uses the SDK with a server that has a domain, and checks that nothing is left.
 * @returns its results
 */
async function findingsOf(
  python: string,
  program: string,
  options: FullServerOptions = {},
): Promise<unknown> {
  const folder = await mkdtemp(join(tmpdir(), "coppice-python-sdk-"));
  try {
    await run(process.execPath, [COPPICE, "tls", "init", DOMAIN, folder]);
    const tls = { cert: join(folder, "cert.pem"), key: join(folder, "key.pem") };
    await using server = await startFullServer({
      ...options,
      server: { domain: DOMAIN, listeners: { api: { host: "127.0.0.1", port: 0, tls } } },
    });
    const { stdout } = await run(python, [client(program)], {
      env: {
        PATH: process.env["PATH"],
        SSL_CERT_FILE: join(folder, "ca.pem"),
        E2B_DOMAIN: `${DOMAIN}:${new URL(server.url).port}`,
        E2B_API_KEY: API_KEY,
      },
      timeout: 200_000,
    });
    assert.equal(server.sandboxes.list().length, 0, "nothing is left");
    return JSON.parse(stdout);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

const UNREACHABLE = "PyPI was not reachable when the tests were set up";

describe("Unmodified Python SDKs", { timeout: 240_000 }, () => {
  for (const sdk of SDKS) {
    const { what, python } = sdk;
    it(
      `${what} runs commands, talks to terminals, moves and watches files, executes code and understands every refusal`,
      { skip: python === undefined && UNREACHABLE },
      async () => assert.deepEqual(await findingsOf(python ?? "", "python-client.py"), found(sdk)),
    );
  }

  const { what, python } = SDKS[0];
  it(
    `${what} pauses sandboxes without their memory, by both of its clients`,
    { skip: python === undefined ? UNREACHABLE : missingForNamespaces() },
    async () => {
      const findings = await findingsOf(python ?? "", "python-pause.py", { backend: "linux-namespaces" });
      assert.deepEqual(findings, { sync: PAUSED, async: PAUSED, missing: "SandboxNotFoundException" });
    },
  );
});
