import assert from "node:assert/strict";
import { once } from "node:events";
import { type AddressInfo, connect } from "node:net";
import { createServer } from "node:http";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { Sandbox } from "e2b";
import { type WebSocket, WebSocketServer } from "ws";
import { eventually, type SeededRandom, type TestServer } from "@coppice/core/testing";
import { packFrame, unpackFrames } from "../../harness/clients/connect-frames.js";
import { type EnvdClient, envdClient } from "../../harness/clients/envd-client.js";
import { type Answer, exchange } from "../../harness/clients/exchange.js";
import { fuzz, mutilated, withoutGrowth } from "../../harness/host/fuzz.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { rawExchange } from "../../harness/clients/raw-exchange.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const FRAGMENTS = [
  "",
  "\0",
  "/",
  "..",
  "~",
  "~x",
  "%",
  "%00",
  " ",
  "é",
  "\u{1f434}",
  "\n",
  "'",
  '"',
  "a".repeat(300),
  "-1",
  "1e9",
  "__proto__",
  "💥",
] as const;

/** Errors for which the contract has a status of 500 and more: the request is impossible, and the server works. */
const BY_CONTRACT =
  /^(error ensuring directories: |path is a file: |error renaming: |invalid input type|invalid signal: |error writing to |error resizing tty|error closing stdin|unknown compression |received compressed envelope, but do not know how)/;

describe("fuzz", { timeout: 240_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;
  let envd: EnvdClient;
  let stranger: EnvdClient;

  before(async () => {
    server = await startFullServer({ settings: { files: { maxWatchersPerSandbox: 500 } } });
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
    const { sandboxId } = sandbox;
    const { accessToken } = server.sandboxes.get(sandboxId).record;
    envd = envdClient({ url: server.url, sandboxId, token: accessToken });
    stranger = envdClient({ url: server.url, sandboxId });
  });
  after(() => server.stop());

  const assertNoFault = (answer: Answer, what: string): void => {
    if (answer.status < 500 || answer.status === 502) return;
    const { message } = JSON.parse(answer.text) as { readonly message?: string };
    assert.match(message ?? "", BY_CONTRACT, `${what}: ${answer.status} ${answer.text}`);
  };

  it("Connect frames: flags, lengths, cuts, broken gzip, the wrong codec", async () => {
    await withoutGrowth(() => fuzz(250, sendFrames));
    await eventually("nothing runs", async () => {
      const { body } = await envd.call("process.Process/List", {});
      return body.processes === undefined;
    });
  });

  async function sendFrames(random: SeededRandom): Promise<void> {
    const [rpc, message] = random.of([
      [
        "process.Process/Start",
        { process: { cmd: "true", args: [random.of(FRAGMENTS)], cwd: random.of(FRAGMENTS) }, stdin: false },
      ],
      [
        "process.Process/Start",
        {
          process: { cmd: "true" },
          pty: { size: { cols: random.below(70_000), rows: random.below(70_000) } },
          tag: random.of(FRAGMENTS),
        },
      ],
      ["process.Process/Connect", { process: { pid: random.below(2 ** 32) } }],
      ["process.Process/StreamInput", { start: { process: { tag: random.of(FRAGMENTS) } } }],
      ["filesystem.Filesystem/WatchDir", { path: random.of(FRAGMENTS), recursive: random.below(2) === 1 }],
      ["process.Process/List", {}],
      ["process.Process/SendInput", { process: { pid: random.below(99_999) }, input: { stdin: "eA==" } }],
      ["process.Process/Update", { process: { tag: random.of(FRAGMENTS) } }],
      ["filesystem.Filesystem/Stat", { path: random.of(FRAGMENTS) }],
      ["filesystem.Filesystem/ListDir", { path: random.of(FRAGMENTS), depth: random.below(2 ** 31) }],
    ]);
    const json = Buffer.from(JSON.stringify(message));
    const isZipped = random.below(4) === 0;
    const payload = isZipped ? gzipSync(json) : json;
    const isStream = random.below(4) > 0;
    const lengthBytes = random.below(6) === 0 ? random.below(2 ** 32) : payload.length;
    const flags = random.below(6) === 0 ? random.below(256) : Number(isZipped);
    const body = isStream ? Buffer.concat([packFrame("", { flags, lengthBytes }), payload]) : payload;
    const codec = random.below(5) === 0 ? "proto" : "json";
    const type = random.of([
      isStream ? `application/connect+${codec}` : `application/${codec}`,
      "application/connect+json",
    ]);
    const encoding = random.of(["gzip", "gzip", "br", "identity"]);
    const answer = await envd.send("POST", `/${rpc}`, {
      headers: {
        "content-type": type,
        "connect-timeout-ms": "400",
        ...(isZipped && { [isStream ? "connect-content-encoding" : "content-encoding"]: encoding }),
      },
      body: mutilated(random, body),
    });
    assertNoFault(answer, `${rpc} ${type}`);
    if (answer.status === 200 && isStream) assertNoFaultInside(answer, rpc);
  }

  /** The error of a stream is in its last frame, under a status of 200. */
  const assertNoFaultInside = ({ body }: Answer, rpc: string): void => {
    const { message, flags } = unpackFrames(body).at(-1) ?? {};
    assert.equal(flags, 2, `${rpc}: the stream has no end`);
    const { error } = message as { readonly error?: { readonly code: string; readonly message: string } };
    if (error === undefined || !["internal", "unknown", "data_loss"].includes(error.code)) return;
    assert.match(error.message, BY_CONTRACT, `${rpc}: ${error.code} ${error.message}`);
  };

  it("Host headers and addresses", async () => {
    const parts = [
      "49983",
      "3000",
      "0",
      "99999",
      "-",
      "-",
      ".",
      ".",
      ":",
      ":80",
      "[::1]",
      "localhost",
      "127.0.0.1",
      "api",
      "sandbox",
      "%00",
      "\u00e9",
      "_",
      "A",
      sandbox.sandboxId,
      "iabcdefghij0123456789",
    ] as const;
    const text = (random: SeededRandom): string =>
      Array.from({ length: random.below(7) }, () => random.of(parts)).join("");
    await withoutGrowth(() =>
      fuzz(300, async (random) => {
        const answer = await exchange(server.url, {
          path: random.of(["/health", "/", "/files", "/sandboxes"]),
          headers: {
            host: text(random),
            ...(random.below(3) === 0 && { "e2b-sandbox-id": text(random) }),
            ...(random.below(3) === 0 && { "e2b-sandbox-port": text(random) }),
          },
        });
        assertNoFault(answer, "host");
      }),
    );
    await fuzz(40, async (random) => {
      const host = mutilated(random, Buffer.from(`49983-${sandbox.sandboxId}.localhost`));
      const request = Buffer.concat([
        Buffer.from("GET /health HTTP/1.1\r\nconnection: close\r\nhost: "),
        host,
        Buffer.from("\r\n\r\n"),
      ]);
      const answer = await rawExchange(server.url, request, { hangUp: true });
      assert.match(answer, /^(HTTP\/1\.1 ([234]\d\d|502) |$)/);
    });
  });

  it("multipart bodies", async () => {
    await withoutGrowth(() =>
      fuzz(250, async (random) => {
        const boundary = random.of(["X", "X", "", "X ", '"X"', "é", "X".repeat(80)]);
        const parts = Array.from({ length: random.below(4) }, () => {
          const name = random.of(["file", "file", "other", "", 'fi"le']);
          const filename = random.of(["a.txt", "b/c.txt", ...FRAGMENTS]);
          const content = random.bytes(random.below(200)).toString("latin1");
          return `--X\r\nContent-Disposition: form-data; name="${name}"; filename="${filename}"\r\n\r\n${content}\r\n`;
        });
        const body = mutilated(random, Buffer.from(`${parts.join("")}--X--\r\n`, "latin1"));
        const isZipped = random.below(5) === 0;
        const path = random.below(3) === 0 ? `?path=${encodeURIComponent(random.of(FRAGMENTS))}` : "";
        const answer = await envd.send("POST", `/files${path}`, {
          headers: {
            "content-type": `multipart/${random.of(["form-data", "form-data", "mixed", ""])}; boundary=${boundary}`,
            ...(isZipped && { "content-encoding": "gzip" }),
          },
          body: isZipped ? mutilated(random, gzipSync(body)) : body,
        });
        assertNoFault(answer, "multipart");
      }),
    );
  });

  it("signatures, in every form of the query: nobody gets in, nothing breaks", async () => {
    await sandbox.files.write("signed.txt", "secret");
    const signed = new URL(await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: 60 })).search;
    assert.equal((await stranger.send("GET", `/files${signed}`)).text, "secret");
    await withoutGrowth(() =>
      fuzz(300, async (random) => {
        const query =
          random.below(2) === 0 ? mutilated(random, Buffer.from(signed)).toString("latin1") : forged(random);
        // Only characters that a request line may have.
        const path = `/files?${encodeURI(query.replace(/^\?/, "")).replace(/#/g, "%23")}`;
        const client = random.below(2) === 0 ? stranger : undefined;
        const method = random.of(["GET", "POST", "HEAD"]);
        const answer = client
          ? await client.send(method, path)
          : await exchange(server.url, { method, path });
        assertNoFault(answer, path);
        if (answer.status === 200) {
          // A change that means nothing, such as of an unknown parameter.
          assert.equal(new URLSearchParams(query).get("path"), "signed.txt", path);
          assert.equal(
            new URLSearchParams(query).get("signature"),
            new URLSearchParams(signed).get("signature"),
          );
        }
      }),
    );
  });

  function forged(random: SeededRandom): string {
    const names = [
      "signature",
      "signature",
      "signature_expiration",
      "path",
      "username",
      "user",
      "x",
    ] as const;
    const values = ["v1_", "v1_AAAA", "v2_x", "v1_%2B%2F=", "9999999999", "-1", "NaN", ...FRAGMENTS] as const;
    return Array.from({ length: random.below(6) }, () => `${random.of(names)}=${random.of(values)}`).join(
      "&",
    );
  }

  it("watch paths", async () => {
    await sandbox.files.makeDir("watched/deep");
    const pieces = ["watched", "deep", "/", "/", ".", "..", ...FRAGMENTS] as const;
    await withoutGrowth(() =>
      fuzz(120, async (random) => {
        const path = Array.from({ length: random.below(5) }, () => random.of(pieces)).join("");
        const recursive = random.below(4) === 0 && path.startsWith("watched");
        const answer = await envd.send("POST", "/filesystem.Filesystem/CreateWatcher", {
          headers: { "content-type": "application/json" },
          body: JSON.stringify({ path, recursive, includeEntry: random.below(2) === 0 }),
        });
        assertNoFault(answer, path);
        if (answer.status !== 200) return;
        const { watcherId } = answer.json() as { readonly watcherId: string };
        const { status } = await envd.call("filesystem.Filesystem/RemoveWatcher", { watcherId });
        assert.equal(status, 200);
      }),
    );
  });

  it("WebSocket frames through the proxy to a port inside", async () => {
    // A port of local-process is one of this machine.
    const http = createServer((_request, response) => void response.end("still here"));
    const sockets = new WebSocketServer({ server: http, maxPayload: 1_000 });
    sockets.on("connection", (socket: WebSocket) => {
      socket.on("error", () => undefined);
      socket.on("message", (data, isBinary) => socket.send(data as Buffer, { binary: isBinary }));
    });
    http.listen(0, "127.0.0.1");
    await once(http, "listening");
    const { port } = http.address() as AddressInfo;
    const { hostname, port: serverPort } = new URL(server.url);
    const host = `${port}-${sandbox.sandboxId}.localhost`;
    try {
      await withoutGrowth(() =>
        fuzz(150, async (random) => {
          const upgrade = Buffer.from(
            `GET / HTTP/1.1\r\nhost: ${host}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n` +
              `sec-websocket-version: 13\r\nsec-websocket-key: ${"A".repeat(22)}==\r\n\r\n`,
          );
          const mask = random.bytes(4);
          const payload = random.bytes(random.below(120)).map((byte, at) => byte ^ (mask[at % 4] ?? 0));
          const frame = Buffer.concat([
            Buffer.of(0x80 + random.below(16), 0x80 + payload.length),
            mask,
            payload,
          ]);
          const socket = connect(Number(serverPort), hostname);
          socket.on("error", () => undefined);
          socket.resume();
          const closed = once(socket, "close");
          socket.write(random.below(4) === 0 ? mutilated(random, upgrade) : upgrade);
          socket.write(mutilated(random, frame));
          if (random.below(2) === 0) socket.end();
          else {
            await pause(random.below(10));
            socket.destroy();
          }
          await closed;
        }),
      );
      await eventually("every socket inside has been closed", () => sockets.clients.size === 0);
      const answer = await exchange(server.url, { headers: { host } });
      assert.equal(answer.text, "still here");
    } finally {
      sockets.close();
      http.closeAllConnections();
      http.close();
    }
  });

  it("leaves a server that still serves, and no process", async () => {
    assert.equal((await sandbox.commands.run("echo fine")).stdout, "fine\n");
    await sandbox.files.write("after.txt", "fine");
    assert.equal(await sandbox.files.read("after.txt"), "fine");
    assert.deepEqual(await sandbox.commands.list(), []);
  });
});
