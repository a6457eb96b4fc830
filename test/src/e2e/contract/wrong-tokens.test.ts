import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import type { TestServer } from "@coppice/core/testing";
import { Volume } from "e2b";
import { WebSocket } from "ws";
import { packFrame } from "../../harness/clients/connect-frames.js";
import { type Answer, exchange, type ExchangeOptions } from "../../harness/clients/exchange.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const LOOPBACK = { host: "127.0.0.1", port: 0 };
const SECRET = "top secret of the tenant";
const PORTS = { envd: "49983", code: "49999", jupyter: "8888", shell: "3000" } as const;
const STREAM = { "content-type": "application/connect+json", "connect-protocol-version": "1" };

/** A request of a bearer, at a port of the sandbox. */
interface Case {
  readonly what: string;
  readonly port: keyof typeof PORTS;
  readonly request: ExchangeOptions;
  /** What the answer to the right token has. */
  readonly tells: RegExp;
  /** True where the SDKs present no token: it may be absent, but not wrong. */
  readonly mayLackToken?: boolean;
}

const json = (method: string, path: string, body?: object): ExchangeOptions => ({
  method,
  path,
  headers: { "content-type": "application/json" },
  ...(body && { body: JSON.stringify(body) }),
});

const FILE: Case = {
  what: "a file",
  port: "envd",
  request: { path: "/files?path=secret.txt" },
  tells: /top secret/,
};

const LINK: Case = {
  what: "a download link",
  port: "envd",
  request: json("POST", "/files/download-url", { path: "secret.txt" }),
  tells: /download-token/,
};

/** What a secret in the sandbox is got by, on every surface. */
const CASES: readonly Case[] = [
  FILE,
  {
    what: "an upload",
    port: "envd",
    request: {
      method: "POST",
      path: "/files?path=uploaded.txt",
      headers: { "content-type": "application/octet-stream" },
      body: "x",
    },
    tells: /uploaded/,
  },
  {
    what: "a directory",
    port: "envd",
    request: json("POST", "/filesystem.Filesystem/ListDir", { path: ".", depth: 1 }),
    tells: /secret\.txt/,
  },
  {
    what: "a command",
    port: "envd",
    request: {
      method: "POST",
      path: "/process.Process/Start",
      headers: STREAM,
      body: packFrame(JSON.stringify({ process: { cmd: "/bin/cat", args: ["secret.txt"] } })),
    },
    tells: /exited/,
  },
  {
    what: "a command as NDJSON",
    port: "envd",
    request: json("POST", "/commands", { cmd: "cat secret.txt" }),
    tells: /top secret/,
  },
  LINK,
  { what: "metrics", port: "envd", request: { path: "/metrics" }, tells: /cpu/ },
  {
    what: "code",
    port: "code",
    request: json("POST", "/execute", { code: "print(open('secret.txt').read())" }),
    tells: /top secret/,
  },
  {
    what: "contexts",
    port: "code",
    request: { path: "/contexts" },
    tells: /python/,
    mayLackToken: true,
  },
  { what: "kernels", port: "jupyter", request: { path: "/api/kernels" }, tells: /\[/ },
  { what: "kernels by path", port: "jupyter", request: { path: "ID/jupyter/api/kernels" }, tells: /\[/ },
  {
    what: "a shell",
    port: "shell",
    request: json("POST", "/api/execute", { command: "echo top secret" }),
    tells: /top secret/,
  },
  {
    what: "a shell by path",
    port: "shell",
    request: json("POST", "ID/shell/api/execute", { command: "echo top secret" }),
    tells: /top secret/,
  },
];

/** At the server that has the sandbox, and by `foreign-suites.test.ts` through one that does not. */
describe("a sandbox is behind its token", { timeout: 240_000 }, () => {
  const isIsolating = missingForNamespaces() === false;
  let server: TestServer;
  let sandbox: Sandbox;
  let token: string;
  let othersToken: string;

  before(async () => {
    const names = ["api", "envd", "code", "ops", "volumes"];
    server = await startFullServer({
      backend: isIsolating ? "linux-namespaces" : "local-process",
      server: { listeners: Object.fromEntries(names.map((name) => [name, LOOPBACK])) },
    });
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
    await sandbox.files.write("secret.txt", SECRET);
    token = tokenOf(sandbox);
    othersToken = tokenOf(await Sandbox.create());
  });
  after(() => server.stop());

  const tokenOf = ({ sandboxId }: Sandbox): string =>
    server.sandboxes.get(sandboxId).record.accessToken ?? "";

  /** Sent where the path names the sandbox by it alone. */
  const ask = (
    { port, request }: Case,
    given: string | undefined,
    id = sandbox.sandboxId,
  ): Promise<Answer> => {
    const { path = "" } = request;
    const isNamed = path.startsWith("ID");
    return exchange(server.url, {
      ...request,
      path: path.replace("ID", `/sandboxes/${id}`),
      headers: {
        ...request.headers,
        ...(!isNamed && { "e2b-sandbox-id": id, "e2b-sandbox-port": PORTS[port] }),
        ...(given !== undefined && { "x-access-token": given }),
      },
    });
  };

  /** None, one of the same form, and that of another sandbox of the same tenant. */
  const wrong = (): readonly (string | undefined)[] => [undefined, "0".repeat(token.length), othersToken];

  it("on every surface: the right one is served, and no other", async () => {
    for (const one of CASES) {
      const right = await ask(one, token);
      assert.equal(Math.floor(right.status / 100), 2, `${one.what}: ${right.status} ${right.text}`);
      assert.match(right.text, one.tells, one.what);
      for (const given of wrong()) {
        if (given === undefined && one.mayLackToken) continue;
        const { status, text } = await ask(one, given);
        const what = `${one.what} with ${given}: ${status} ${text}`;
        assert.ok(status === 401 || status === 404 || status === 502, what);
        assert.doesNotMatch(text, one.tells, what);
      }
    }
  });

  it("also of its signed URLs: one that has expired, was forged, or is for another file or operation", async () => {
    const signature = (path: string, operation: string, by: string, expiration?: number): string => {
      const signed = [path, operation, "", by, ...(expiration === undefined ? [] : [expiration])].join(":");
      const made = `v1_${createHash("sha256").update(signed).digest("base64").replace(/=+$/, "")}`;
      return new URLSearchParams({
        signature: made,
        ...(expiration !== undefined && { signature_expiration: String(expiration) }),
      }).toString();
    };
    const nowS = Math.floor(Date.now() / 1000);
    const read = (query: string): ExchangeOptions => ({ path: `/files?path=secret.txt&${query}` });
    const upload = (query: string): ExchangeOptions => ({
      method: "POST",
      path: `/files?path=written.txt&${query}`,
      headers: { "content-type": "application/octet-stream" },
      body: "x",
    });
    const right = [
      read(signature("secret.txt", "read", token)),
      read(signature("secret.txt", "read", token, nowS + 60)),
      upload(signature("written.txt", "write", token, nowS + 60)),
    ];
    const refused = [
      read(signature("secret.txt", "read", token, nowS - 60)),
      read(signature("secret.txt", "read", othersToken)),
      read(signature("other.txt", "read", token)),
      read(signature("secret.txt", "write", token)),
      read(
        `${signature("secret.txt", "read", token, nowS - 60).split("&")[0]}&signature_expiration=${nowS + 60}`,
      ),
      read(`signature=v1_${"A".repeat(43)}`),
      read(""),
      upload(signature("written.txt", "read", token)),
      upload(signature("written.txt", "write", token, nowS - 60)),
    ];
    const address = { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": PORTS.envd };
    // Without an address the sandbox is found by the signature (`E2B_SANDBOX_URL`), where some sandbox's token made it.
    for (const named of [address, {}]) {
      for (const request of right) {
        const headers = { ...request.headers, ...named };
        const { status, text } = await exchange(server.url, { ...request, headers });
        assert.equal(status, 200, `${request.path}: ${text}`);
      }
      for (const request of refused) {
        const headers = { ...request.headers, ...named };
        const { status, text } = await exchange(server.url, { ...request, headers });
        assert.ok([401, 404].includes(status), `${request.path}: ${status} ${text}`);
        assert.doesNotMatch(text, /top secret/);
      }
    }
  });

  it("also of its WebSockets", async () => {
    const kernels = await ask({ ...FILE, port: "jupyter", request: { path: "/api/kernels" } }, token);
    const [kernel] = kernels.json() as { readonly id: string }[];
    assert.ok(kernel, kernels.text);
    const opened = async (path: string, headers: Readonly<Record<string, string>>): Promise<boolean> => {
      const socket = new WebSocket(server.url.replace("http", "ws") + path, { headers });
      try {
        await once(socket, "open");
        return true;
      } catch {
        return false;
      } finally {
        socket.terminate();
      }
    };
    const inPath = `/sandboxes/${sandbox.sandboxId}`;
    for (const [port, plain, named] of [
      [
        "jupyter",
        `/api/kernels/${kernel.id}/channels`,
        `${inPath}/jupyter/api/kernels/${kernel.id}/channels`,
      ],
      ["shell", "/ws", `${inPath}/shell/ws`],
    ] as const) {
      const address = { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": PORTS[port] };
      const presented = (given: string | undefined) =>
        given === undefined ? {} : { "x-access-token": given };
      for (const given of [token, ...wrong()]) {
        const what = `${port} with ${given}`;
        assert.equal(await opened(plain, { ...address, ...presented(given) }), given === token, what);
        assert.equal(await opened(named, presented(given)), given === token, `${what} by path`);
      }
    }
  });

  it("also of its ports, where they have one", async () => {
    const closed = await Sandbox.create({ network: { allowPublicTraffic: false } });
    const own = server.sandboxes.get(closed.sandboxId).record.trafficAccessToken ?? "";
    assert.notEqual(own, "");
    const through = (port: string, given: string) =>
      exchange(server.url, {
        path: "/contexts",
        headers: {
          "e2b-sandbox-id": closed.sandboxId,
          "e2b-sandbox-port": port,
          "e2b-traffic-access-token": given,
        },
      });
    for (const port of ["8080", PORTS.code, PORTS.jupyter, PORTS.shell]) {
      for (const given of ["", "0".repeat(own.length), token])
        assert.equal((await through(port, given)).status, 403, port);
      assert.notEqual((await through(port, own)).status, 403, port);
    }
    await closed.kill();
  });

  it("also of a link to a file", async () => {
    const made = (await ask(LINK, token)).json() as { readonly url: string };
    const { pathname, search } = new URL(made.url, server.url);
    assert.equal((await exchange(server.url, { path: pathname + search })).text, SECRET);
    const [proof = "", mac = ""] = pathname.split(".");
    for (const path of [
      `${proof}.${"A".repeat(mac.length)}${search}`,
      `${pathname}?path=other.txt`,
      `/files/download-token/x.y${search}`,
    ]) {
      const { status, text } = await exchange(server.url, { path });
      assert.ok(status === 401 || status === 404, `${path}: ${status} ${text}`);
    }
  });

  it("also of the contents of its volumes", { skip: missingForNamespaces() }, async () => {
    const made = await exchange(server.url, {
      ...json("POST", "/volumes", { name: "kept" }),
      headers: { "x-api-key": API_KEY, "content-type": "application/json" },
    });
    const { volumeID: id, token: own } = made.json() as { readonly volumeID: string; readonly token: string };
    const read = (given: string | undefined, volume = id) =>
      exchange(server.urls["volumes"] ?? "", {
        path: `/volumecontent/${volume}/dir?path=/`,
        headers: given === undefined ? {} : { authorization: `Bearer ${given}` },
      });
    assert.equal((await read(own)).status, 200);
    for (const given of [undefined, "0".repeat(own.length), token, API_KEY])
      assert.equal((await read(given)).status, 401, given);
    await Volume.destroy(id);
  });

  it("and stays paused when it is asked without", { skip: missingForNamespaces() }, async () => {
    const paused = await Sandbox.create({ lifecycle: { onTimeout: "pause", autoResume: true } });
    await paused.files.write("secret.txt", SECRET);
    await paused.pause();
    const state = () => server.sandboxes.get(paused.sandboxId).record.state;
    for (const one of CASES)
      for (const given of wrong()) {
        if (given === undefined && one.mayLackToken) continue;
        assert.ok((await ask(one, given, paused.sandboxId)).status >= 400, one.what);
        assert.equal(state(), "paused", `${one.what} with ${given}`);
      }
    const right = await ask(FILE, tokenOf(paused), paused.sandboxId);
    assert.equal(right.text, SECRET);
    assert.equal(state(), "running");
    await paused.kill();
  });
});
