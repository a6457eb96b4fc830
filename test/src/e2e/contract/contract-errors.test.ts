import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import {
  AuthenticationError,
  FileNotFoundError,
  InvalidArgumentError,
  NotFoundError,
  RateLimitError,
  Sandbox,
  SandboxError as SdkSandboxError,
  SandboxNotFoundError,
  ServiceBusyError,
  Template,
  TimeoutError,
} from "e2b";
import { SandboxError } from "@coppice/core";
import type { Command, ErrorCode } from "@coppice/core/backend";
import type { TestServer } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { type EnvdClient, envdClient } from "../../harness/clients/envd-client.js";
import { exchange } from "../../harness/clients/exchange.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { Relay } from "../../harness/clients/relay.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const MOST = 3;
const STRANGER = `e2b_${"0".repeat(40)}`;
const UNKNOWN_ID = "iabcdefghij0123456789";
const PYTHON_CLIENT = fileURLToPath(new URL("../../../src/e2e/sdk/python-errors.py", import.meta.url));
const PYTHON_SDK = process.env["COPPICE_PYTHON_SDK_NEWEST"];

type ErrorClass = new (...given: never[]) => Error;

/**
 * The error that the JS SDK raises for a unary RPC, and for the first event of a stream; that of the Python SDK; and the
 * number of the Connect code, where the JS SDK shows no name.
 */
type CodeRow = readonly [
  row: `D.1 ${ErrorCode}`,
  status: number,
  js: readonly [unary: ErrorClass, stream: ErrorClass],
  python: string,
  number?: number,
];

const CODES = (
  [
    ["D.1 canceled", 499, [TimeoutError, TimeoutError], "TimeoutException"],
    ["D.1 unknown", 500, [SdkSandboxError, SdkSandboxError], "SandboxException", 2],
    ["D.1 invalid_argument", 400, [InvalidArgumentError, InvalidArgumentError], "InvalidArgumentException"],
    ["D.1 deadline_exceeded", 504, [TimeoutError, TimeoutError], "TimeoutException"],
    ["D.1 not_found", 404, [FileNotFoundError, FileNotFoundError], "FileNotFoundException"],
    ["D.1 already_exists", 409, [SdkSandboxError, SdkSandboxError], "SandboxException", 6],
    ["D.1 permission_denied", 403, [SdkSandboxError, SdkSandboxError], "SandboxException", 7],
    ["D.1 resource_exhausted", 429, [RateLimitError, RateLimitError], "RateLimitException"],
    ["D.1 failed_precondition", 400, [SdkSandboxError, SdkSandboxError], "SandboxException", 9],
    ["D.1 out_of_range", 400, [SdkSandboxError, SdkSandboxError], "SandboxException", 11],
    ["D.1 aborted", 409, [SdkSandboxError, SdkSandboxError], "SandboxException", 10],
    ["D.1 unimplemented", 501, [SdkSandboxError, SdkSandboxError], "SandboxException", 12],
    ["D.1 internal", 500, [SdkSandboxError, SdkSandboxError], "SandboxException", 13],
    ["D.1 data_loss", 500, [SdkSandboxError, SdkSandboxError], "SandboxException", 15],
    ["D.1 unavailable", 503, [TimeoutError, SandboxNotFoundError], "TimeoutException"],
    ["D.1 unauthenticated", 401, [AuthenticationError, AuthenticationError], "AuthenticationException"],
  ] satisfies readonly CodeRow[]
).map(([row, status, js, python, number]: CodeRow) => ({
  row,
  code: row.slice("D.1 ".length),
  status,
  js,
  python,
  number,
}));

/** Tables A.2 and D.1 of E2B's interface: failures on the wire, and the errors of the SDKs. */
describe("errors by their contract", { timeout: 240_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;
  let envd: EnvdClient;

  before(async () => {
    server = await startFullServer({ server: { sandboxes: { maximum: MOST } } });
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
    const { accessToken } = server.sandboxes.get(sandbox.sandboxId).record;
    envd = envdClient({ url: server.url, sandboxId: sandbox.sandboxId, token: accessToken });
  });
  after(() => server.stop());

  const api = (method: string, path: string, body?: unknown, key = API_KEY) =>
    exchange(server.url, {
      method,
      path: path.replace("ID", sandbox.sandboxId),
      headers: { ...(key !== "" && { "x-api-key": key }), "content-type": "application/json" },
      ...(body !== undefined && { body: typeof body === "string" ? body : JSON.stringify(body) }),
    });

  describe("D.1, a code through a unary RPC and a stream", () => {
    before(() => {
      const { runtime } = server.sandboxes.get(sandbox.sandboxId);
      const { spawn } = Object.getPrototypeOf(runtime) as { spawn: (command: Command) => unknown };
      const { stat } = Object.getPrototypeOf(runtime.files) as { stat: (path: string) => unknown };
      // The backend fails with the error that the request names.
      Object.assign(runtime.files, {
        stat: async (path: string) => {
          fail(path);
          return stat.call(runtime.files, path);
        },
      });
      Object.assign(runtime, {
        spawn: async (command: Command) => {
          fail(command.args?.at(-1) ?? "");
          return spawn.call(runtime, command);
        },
      });
    });

    for (const {
      row,
      code,
      status,
      js: [unary, stream],
      number,
    } of CODES) {
      it(row, async () => {
        const wire = await envd.call("filesystem.Filesystem/Stat", { path: `/fail/${code}` });
        const message =
          code === "not_found"
            ? `file not found: lstat /fail/not_found: no such file or directory`
            : `failed with ${code}`;
        assert.deepEqual(wire, { status, body: { code, message } });
        const frames = await Array.fromAsync(
          envd.stream("filesystem.Filesystem/WatchDir", { path: `/fail/${code}` }),
        );
        const said =
          code === "not_found"
            ? `path /fail/not_found not found: failed with not_found`
            : `failed with ${code}`;
        assert.deepEqual(frames, [{ flags: 2, message: { error: { code, message: said } } }]);

        const assertRaised = (what: string, expected: ErrorClass) => (error: unknown) => {
          assert.ok(error instanceof Error);
          assert.equal(error.constructor.name, expected.name, `${what}: ${String(error)}`);
          if (number !== undefined)
            assert.ok(error.message.startsWith(`${number}: [${code}] `), error.message);
          return true;
        };
        await assert.rejects(sandbox.files.getInfo(`/fail/${code}`), assertRaised("unary", unary));
        const watching = sandbox.files.watchDir(`/fail/${code}`, () => undefined);
        await assert.rejects(watching, assertRaised("watch", stream));
        // A command that cannot be started for a reason of its own is an invalid argument.
        if (code === "failed_precondition") return;
        const started = code === "not_found" ? NotFoundError : stream;
        await assert.rejects(sandbox.commands.run(`/fail/${code}`), assertRaised("command", started));
      });
    }

    it("D.1 not_found and already_exists, where the SDK answers false", async () => {
      assert.equal(await sandbox.files.exists("absent"), false);
      assert.equal(await sandbox.commands.kill(4_000_000), false);
      assert.equal(await sandbox.files.makeDir("twice"), true);
      assert.equal(await sandbox.files.makeDir("twice"), false);
    });

    it("D.1 every code as the Python SDK raises it", { skip: withoutPython() }, async () => {
      const raised = await pythonRaises("codes", sandbox.sandboxId, ...CODES.map(({ code }) => code));
      assert.deepEqual(raised, Object.fromEntries(CODES.map(({ code, python }) => [code, python])));
    });
  });

  /** Errors that the newest Python SDK raised, by operation. */
  async function pythonRaises(...words: readonly string[]): Promise<unknown> {
    const address = { E2B_API_URL: server.url, E2B_SANDBOX_URL: server.url, E2B_API_KEY: API_KEY };
    const { stdout } = await promisify(execFile)(PYTHON_SDK ?? "", [PYTHON_CLIENT, ...words], {
      env: { PATH: process.env["PATH"], ...address },
      timeout: 40_000,
    });
    return JSON.parse(stdout);
  }

  describe("D.1, what the SDK makes of a command's stream", () => {
    it("D.1 outcome, EndStream error deadline_exceeded", async () => {
      await assert.rejects(sandbox.commands.run("sleep 300", { timeoutMs: 500 }), (error) => {
        assert.ok(error instanceof TimeoutError, String(error));
        assert.match(error.message, /^\[deadline_exceeded\] .*: .*exceeding 'timeoutMs'/);
        return true;
      });
    });

    it("D.1 outcome, socket destroyed, /health 204", async () => {
      const relay = await Relay.start(server.url);
      try {
        const connected = await Sandbox.connect(sandbox.sandboxId, { sandboxUrl: relay.url });
        const command = await connected.commands.run("echo up; exec sleep 300", { background: true });
        const broken = assert.rejects(command.wait(), (error) => {
          assert.equal((error as Error).constructor, SdkSandboxError, String(error));
          assert.equal((error as Error).message, "2: [unknown] terminated");
          return true;
        });
        relay.cut();
        await broken;
        assert.equal(await sandbox.commands.kill(command.pid), true, "the command goes on");
      } finally {
        await relay.close();
      }
    });

    it("D.1 outcome, end {} is success", async () => {
      const { exitCode, error } = await sandbox.commands.run("true");
      assert.deepEqual([exitCode, error], [0, undefined]);
    });

    it("D.1 outcome, HTTP 502 instead of a stream", async () => {
      const mortal = await Sandbox.create();
      await mortal.kill();
      await assert.rejects(mortal.commands.run("true"), (error) => {
        assert.ok(error instanceof SandboxNotFoundError, String(error));
        assert.match(error.message, /Sandbox is probably not running anymore/);
        return true;
      });
    });

    it("D.1 outcome, first frame EndStream error invalid_argument", async () => {
      await assert.rejects(sandbox.commands.run("true", { cwd: "/x" }), (error) => {
        assert.ok(error instanceof InvalidArgumentError, String(error));
        assert.equal(error.message, "[invalid_argument] cwd '/x' does not exist");
        return true;
      });
    });
  });

  it("A.2 the body of every error: code, message, JSON", async () => {
    for (const answer of [
      await api("GET", `/sandboxes/${UNKNOWN_ID}`),
      await api("POST", "/sandboxes", "{"),
      await api("GET", "/nowhere"),
      await api("PUT", "/sandboxes"),
      await api("GET", "/sandboxes", undefined, STRANGER),
    ]) {
      const body = answer.json() as { code: unknown; message: unknown };
      assert.match(answer.headers["content-type"] ?? "", /^application\/json/);
      assert.equal(body.code, answer.status);
      assert.equal(typeof body.message, "string");
      assert.deepEqual(
        Object.keys(body).filter((key) => !["code", "message", "error_code"].includes(key)),
        [],
      );
    }
  });

  it("A.2 401", async () => {
    await assert.rejects(Sandbox.create({ apiKey: STRANGER }), (error) => {
      assert.ok(error instanceof AuthenticationError);
      assert.equal(
        error.message,
        "Unauthorized, please check your credentials. - Cannot get the team for the given API key",
      );
      return true;
    });
  });

  it("A.2 429, and the text of the concurrency limit", async () => {
    const others = await Promise.all(Array.from({ length: MOST - 1 }, () => Sandbox.create()));
    await assert.rejects(Sandbox.create(), (error) => {
      assert.ok(error instanceof RateLimitError, String(error));
      assert.equal(error.statusCode, 429);
      assert.equal(
        error.message,
        `Rate limit exceeded, please try again later - you have reached the maximum number of concurrent E2B sandboxes (${MOST}). If you need more, ask the operator of this server`,
      );
      return true;
    });
    await Promise.all(others.map((other) => other.kill()));
  });

  it("A.2 503 and other statuses", async ({ mock }) => {
    const create = mock.method(server.sandboxes, "create", async () => {
      throw new SandboxError("server_stopping", "the server is stopping");
    });
    await assert.rejects(Sandbox.create(), (error) => {
      assert.ok(error instanceof ServiceBusyError, String(error));
      assert.equal(error.statusCode, 503);
      assert.equal(error.message, "Service temporarily unavailable, please retry - the server is stopping");
      return true;
    });
    create.mock.mockImplementation(async () => {
      throw new TypeError("a bug, with a secret in its text");
    });
    await assert.rejects(Sandbox.create(), (error) => {
      assert.ok(error instanceof SdkSandboxError, String(error));
      assert.equal((error as { statusCode?: number }).statusCode, 500);
      assert.equal(error.message, "500: internal error");
      return true;
    });
  });

  it("A.2 404 by the body's code: false, and who is not found", async () => {
    assert.equal(await Sandbox.kill(UNKNOWN_ID), false);
    const notFound = `Sandbox ${UNKNOWN_ID} not found`;
    const rows = [
      ["getInfo", () => Sandbox.getInfo(UNKNOWN_ID), notFound],
      ["getMetrics", () => Sandbox.getMetrics(UNKNOWN_ID), notFound],
      ["setTimeout", () => Sandbox.setTimeout(UNKNOWN_ID, 1_000), notFound],
      ["pause", () => Sandbox.pause(UNKNOWN_ID), notFound],
      ["updateNetwork", () => Sandbox.updateNetwork(UNKNOWN_ID, {}), notFound],
      ["createSnapshot", () => Sandbox.createSnapshot(UNKNOWN_ID), notFound],
      ["connect", () => Sandbox.connect(UNKNOWN_ID), `Paused sandbox ${UNKNOWN_ID} not found`],
    ] as const;
    for (const [what, asked, message] of rows) {
      await assert.rejects(asked, (error) => {
        assert.ok(error instanceof SandboxNotFoundError, `${what}: ${String(error)}`);
        assert.equal(error.message, message, what);
        return true;
      });
    }
    assert.equal(await Sandbox.deleteSnapshot(`${UNKNOWN_ID}:default`), false);
  });

  it("A.2 404 by its status: a fork, an alias", async () => {
    await assert.rejects(Sandbox.fork(UNKNOWN_ID), SandboxNotFoundError);
    assert.equal(await Template.exists("no-such"), false);
  });

  describe("A.2, a sandbox that is paused", () => {
    let paused: Sandbox;
    /** Called when a change has begun; the change waits for its promise. */
    let hold: (() => Promise<void>) | undefined;
    before(async () => {
      paused = await Sandbox.create();
      const { runtime } = server.sandboxes.get(paused.sandboxId);
      const wait = async () => hold?.();
      // Added to a backend without pausing: these errors come from the server, not from the backend.
      Object.assign(runtime, {
        pausing: { pause: wait, resume: async () => undefined },
        snapshots: { take: wait },
      });
    });
    after(() => paused.kill());

    for (const [row, verb, what] of [
      ["A.2 being paused", "pause", "paused"],
      ["A.2 being snapshotted", "snapshots", "snapshotted"],
    ] as const) {
      it(row, async () => {
        const begun = Promise.withResolvers<void>();
        const release = Promise.withResolvers<void>();
        hold = () => {
          begun.resolve();
          return release.promise;
        };
        const path = `/sandboxes/${paused.sandboxId}`;
        const first = api("POST", `${path}/${verb}`, {});
        await begun.promise;
        const another = await api("POST", `${path}/snapshots`, {});
        // A pause waits for either, and does not come twice.
        const pauses = Array.from({ length: 4 }, () => server.sandboxes.pause(paused.sandboxId));
        release.resolve();
        hold = undefined;
        const message = `Sandbox "${paused.sandboxId}" is being ${what}`;
        assert.deepEqual([another.status, another.json()], [409, { code: 409, message }]);
        assert.equal((await first).status, verb === "pause" ? 204 : 201);
        await Promise.all(pauses);
        assert.equal(server.sandboxes.get(paused.sandboxId).record.state, "paused");
        await api("POST", `${path}/resume`, {});
      });
    }

    it("A.2 pause twice", async () => {
      const path = `/sandboxes/${paused.sandboxId}/pause`;
      assert.equal((await api("POST", path, {})).status, 204);
      const again = await api("POST", path, {});
      const message = `Error pausing sandbox - sandbox '${paused.sandboxId}' is already paused`;
      assert.deepEqual([again.status, again.json()], [409, { code: 409, message }]);
      assert.equal(await paused.pause(), false);
      assert.equal(await paused.isRunning(), false);
      const forked = await api("POST", `/sandboxes/${paused.sandboxId}/fork`, {});
      const refusal = `Sandbox '${paused.sandboxId}' is paused and cannot be forked; resume it first`;
      assert.deepEqual([forked.status, forked.json()], [409, { code: 409, message: refusal }]);
    });

    it("A.2 as the Python SDK raises it: 400, 401, 404, 409, 429", { skip: withoutPython() }, async () => {
      const others = await Promise.all(Array.from({ length: MOST - 2 }, () => Sandbox.create()));
      const raised = await pythonRaises("statuses", UNKNOWN_ID, STRANGER, paused.sandboxId);
      await Promise.all(others.map((other) => other.kill()));
      assert.deepEqual(raised, {
        "unknown key": "AuthenticationException",
        "unknown sandbox": "SandboxNotFoundException",
        "kill of an unknown sandbox": false,
        "pause of a paused sandbox": false,
        "one sandbox too many": "RateLimitException",
        "too long a time-out": "SandboxException",
      });
    });

    it("A.2 resume running", async () => {
      const path = `/sandboxes/${paused.sandboxId}/resume`;
      assert.equal((await api("POST", path, {})).status, 201);
      const again = await api("POST", path, {});
      const message = `Sandbox ${paused.sandboxId} is already running`;
      assert.deepEqual([again.status, again.json()], [409, { code: 409, message }]);
    });
  });

  for (const [row, method, path, body, status, message, key] of [
    ["A.2 no auth header", "GET", "/sandboxes", undefined, 401, "authorization header is missing", ""],
    ["A.2 key without e2b_ prefix", "GET", "/sandboxes", undefined, 401, "Invalid API key format", "abc"],
    ["A.2 key with bad hex", "GET", "/sandboxes", undefined, 401, "Invalid API key format", "e2b_xyz"],
    [
      "A.2 unknown key",
      "GET",
      "/sandboxes",
      undefined,
      401,
      "Cannot get the team for the given API key",
      STRANGER,
    ],
    ["A.2 schema violation", "POST", "/v2/sandboxes", {}, 400, /^validation error: /],
    ["A.2 unreadable body", "POST", "/v2/sandboxes", "{", 400, /^Error when parsing request: /],
    ["A.2 id not ^[a-z0-9]+$", "GET", "/sandboxes/UPPER", undefined, 400, "Invalid sandbox ID"],
    [
      "A.2 sandbox unknown",
      "GET",
      `/sandboxes/${UNKNOWN_ID}`,
      undefined,
      404,
      new RegExp(`^Sandbox "${UNKNOWN_ID}" doesn't exist or you don't have access to it`),
    ],
    [
      "A.2 timeout ≤ 0 on create",
      "POST",
      "/v2/sandboxes",
      { templateID: "base", timeout: 0 },
      400,
      "Timeout must be greater than 0",
    ],
    [
      "A.2 timeout too large",
      "POST",
      "/v2/sandboxes",
      { templateID: "base", timeout: 2 ** 31 - 1 },
      400,
      /^Timeout cannot be greater than \d+ hours$/,
    ],
    [
      "A.2 setTimeout beyond max",
      "POST",
      "/sandboxes/ID/timeout",
      { timeout: 2 ** 31 - 1 },
      400,
      "Max instance length exceeded",
    ],
    [
      "A.2 template unknown",
      "POST",
      "/sandboxes",
      { templateID: "no-such" },
      404,
      "template 'no-such' not found",
    ],
    [
      "A.2 tag unknown",
      "POST",
      "/sandboxes",
      { templateID: "base:nightly" },
      404,
      "tag 'nightly' does not exist for template 'base'",
    ],
    [
      "A.2 bad template string",
      "POST",
      "/sandboxes",
      { templateID: "a b" },
      400,
      /^Invalid template reference: /,
    ],
    [
      "A.2 autoPauseMemory:false without autoPause",
      "POST",
      "/v2/sandboxes",
      { templateID: "base", autoPauseMemory: false },
      400,
      "autoPauseMemory=false only applies when autoPause is true.",
    ],
    [
      "A.2 autoPauseMemory:false with autoResume",
      "POST",
      "/v2/sandboxes",
      { templateID: "base", autoPause: true, autoPauseMemory: false, autoResume: { enabled: true } },
      400,
      /^autoPauseMemory=false \(filesystem-only auto-pause\) cannot be combined with autoResume: /,
    ],
    [
      "A.2 allowPublicTraffic:false without secure (v1)",
      "POST",
      "/sandboxes",
      { templateID: "base", network: { allowPublicTraffic: false } },
      400,
      "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.",
    ],
    ["A.2 fork count 0", "POST", "/sandboxes/ID/fork", { count: 0 }, 400, "Count must be at least 1"],
    [
      "A.2 fork count too many",
      "POST",
      "/sandboxes/ID/fork",
      { count: 1_000_000 },
      400,
      /^Count cannot be greater than \d+$/,
    ],
    ["A.2 bad cursor", "GET", "/v2/sandboxes?nextToken=%25%25", undefined, 400, "Invalid next token"],
  ] as const) {
    it(row, async () => {
      const answer = await api(method, path, body, key);
      const said = answer.json() as { readonly code: number; readonly message: string };
      assert.deepEqual([answer.status, said.code], [status, status], answer.text);
      if (typeof message === "string") assert.equal(said.message, message);
      else assert.match(said.message, message);
    });
  }

  it("A.2 GET /health of the API", async () => {
    const answer = await api("GET", "/health", undefined, "");
    assert.deepEqual([answer.status, answer.text], [200, "Health check successful"]);
  });
});

function withoutPython(): string | false {
  return PYTHON_SDK === undefined ? "PyPI was not reachable when the tests were set up" : false;
}

function fail(path: string): void {
  const [, code] = /^\/fail\/([a-z_]+)$/.exec(path) ?? [];
  if (code !== undefined)
    throw new SandboxError({ reason: "test.failed", code: code as ErrorCode }, `failed with ${code}`);
}
