import assert from "node:assert/strict";
import { createServer, type RequestListener } from "node:http";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
import { after, before, describe, it } from "node:test";
import { Commands } from "@coppice/plugin-commands";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

describe("ports over HTTP", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  const servers: { close(): unknown }[] = [];
  before(async () => {
    shell = await startShellServer({ probeTimeout: "1s", maxWatches: 2 });
  });
  after(async () => {
    for (const server of servers) server.close();
    await shell[Symbol.asyncDispose]();
  });

  const listen = async (answer: RequestListener): Promise<number> => {
    const server = createServer(answer).listen(0, "127.0.0.1");
    servers.push(server);
    await new Promise((resolve) => void server.once("listening", resolve));
    return (server.address() as AddressInfo).port;
  };
  const watch = async (body: object) => {
    const events = await shell.events("POST", "/api/port-watch", body);
    return events.map(({ timestamp, ...rest }) => {
      assert.ok(timestamp);
      return rest;
    });
  };
  it("a port that is listened on is ready, with its status for HTTP", async () => {
    const asked: unknown[] = [];
    const port = await listen((request, response) => {
      asked.push(request.url);
      response.writeHead(request.url === "/moved" ? 302 : 200, { location: "/elsewhere" }).end();
    });
    const watching = { type: "watching", port };
    assert.deepEqual(await watch({ port, mode: "tcp" }), [watching, { type: "ready", port }]);
    assert.deepEqual(await watch({ port, mode: "http", path: "a?b=c" }), [
      watching,
      { type: "ready", port, statusCode: 200 },
    ]);
    assert.deepEqual(await watch({ port, mode: "http", path: "/moved" }), [
      watching,
      { type: "ready", port, statusCode: 302 },
    ]);
    assert.deepEqual(asked, ["/a?b=c", "/moved"]);
  });

  it("a port is waited for until its status is wanted, and while it does not answer", async () => {
    let requests = 0;
    const port = await listen((_, response) => {
      requests++;
      if (requests > 1) response.writeHead(requests === 2 ? 500 : 204).end();
    });
    const body = { port, mode: "http", statusMin: 204, statusMax: 204, interval: 1 };
    assert.deepEqual((await watch(body)).at(-1), { type: "ready", port, statusCode: 204 });
    assert.equal(requests, 3);
  });

  it("the end of a process ends the watch, also when it ended before", async () => {
    const closed = createTcpServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => void closed.once("listening", resolve));
    const { port } = closed.address() as AddressInfo;
    await new Promise((resolve) => void closed.close(resolve));
    const args = ["-c", "sleep 1; exit 7"];
    await shell.server.resolve(Commands).start(shell.sandbox, { path: "sh", args, tag: "exits" });
    const body = { port, mode: "tcp", processId: "exits", interval: 100 };
    const expected = [
      { type: "watching", port },
      { type: "process_exited", port, exitCode: 7 },
    ];
    assert.deepEqual(await watch(body), expected);
    assert.deepEqual(await watch(body), expected);
  });

  it("watches are limited, and end with their clients", async () => {
    const port = await listen((_, response) => void response.writeHead(500).end());
    const leaving = new AbortController();
    const ask = (signal: AbortSignal) =>
      fetch(`${shell.url}/api/port-watch`, {
        method: "POST",
        body: JSON.stringify({ port, mode: "http", interval: 100 }),
        signal,
      });
    const answers = await Promise.all([ask(leaving.signal), ask(leaving.signal)]);
    for (const { body } of answers) await body?.getReader().read();
    assert.equal(
      (await shell.json("POST", "/api/port-watch", { port, mode: "tcp" }, 409))["code"],
      "RESOURCE_BUSY",
    );
    leaving.abort();
    for (;;) {
      const answer = await shell.ask("POST", "/api/port-watch", { port, mode: "tcp" });
      await answer.text();
      if (answer.status === 200) break;
      assert.equal(answer.status, 409);
    }
  });

  it("hostile requests are refused", async () => {
    for (const wrong of [
      {},
      { port: "80" },
      { port: 0 },
      { port: 65_536 },
      { port: 1.5 },
      { mode: "udp" },
      { path: 1 },
      { path: "/a b" },
      { path: "/\r\nx: y" },
      { path: "x".repeat(2 ** 20) },
      { statusMin: 1e9 },
      { interval: "1" },
    ]) {
      const body = Object.keys(wrong).length === 0 ? {} : { port: 80, mode: "http", ...wrong };
      const answer = await shell.json("POST", "/api/port-watch", body, 400);
      assert.equal(answer["code"], "VALIDATION_FAILED", JSON.stringify(wrong).slice(0, 100));
    }
    const body = { port: 80, mode: "tcp", processId: "nobody" };
    assert.equal((await shell.json("POST", "/api/port-watch", body, 404))["code"], "PROCESS_NOT_FOUND");
  });
});
