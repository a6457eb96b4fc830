import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, describe, it } from "node:test";
import { WebSocket } from "ws";
import { type ShellServer, startShellServer } from "../testing/shell-server.js";

type Message = Readonly<Record<string, unknown>>;

/** A client of the WebSocket. */
class Client implements Disposable {
  readonly socket: WebSocket;
  readonly #received: Message[] = [];
  #arrived = Promise.withResolvers<void>();

  constructor(url: string, headers: Readonly<Record<string, string>> = {}) {
    this.socket = new WebSocket(url.replace("http", "ws"), { headers });
    this.socket.on("message", (data: Buffer) => {
      this.#received.push(JSON.parse(data.toString()) as Message);
      this.#arrived.resolve();
    });
  }

  static async open(url: string): Promise<Client> {
    const client = new Client(url);
    await once(client.socket, "open");
    return client;
  }

  send(message: unknown): void {
    this.socket.send(typeof message === "string" ? message : JSON.stringify(message));
  }

  request(id: string, method: string, path: string, body?: unknown): void {
    this.send({ type: "request", id, method, path, body });
  }

  /** The first message that was not taken yet, and is wanted. */
  async next(isWanted: (message: Message) => boolean = () => true): Promise<Message> {
    for (;;) {
      const at = this.#received.findIndex(isWanted);
      const [found] = at < 0 ? [] : this.#received.splice(at, 1);
      if (found !== undefined) return found;
      this.#arrived = Promise.withResolvers();
      await this.#arrived.promise;
    }
  }

  [Symbol.dispose](): void {
    this.socket.terminate();
  }
}

describe("the WebSocket of shell sessions", { timeout: 120_000 }, () => {
  let shell: ShellServer;
  before(async () => {
    shell = await startShellServer({ maxSocketRequests: 2, maxSocketsPerSandbox: 3, maxSockets: 4 });
  });
  after(() => shell[Symbol.asyncDispose]());

  const bodyOf = (message: Message) => message["body"] as Message;

  it("refuses a message with very many values", async () => {
    using client = await Client.open(`${shell.url}/ws`);
    const more = Array.from({ length: 6000 }, () => ({}));
    client.request("many", "POST", "/api/execute", { command: "true", more });
    assert.equal((await client.next())["type"], "error");
    client.request("few", "POST", "/api/execute", { command: "true" });
    assert.equal((await client.next(({ id }) => id === "few"))["status"], 200);
  });

  it("carries requests to the routes, and answers of any length", async () => {
    using client = await Client.open(`${shell.url}/ws`);
    client.request("1", "POST", "/api/execute", {
      command: "seq 1 200000; echo 'ä\"' >&2; exit_code() { return 3; }; exit_code",
    });
    const answer = await client.next();
    assert.deepEqual(
      [answer["type"], answer["id"], answer["status"], answer["done"]],
      ["response", "1", 200, true],
    );
    const { exitCode, stdout, stderr } = bodyOf(answer);
    assert.deepEqual([exitCode, stderr], [3, 'ä"']);
    assert.equal(stdout, Array.from({ length: 200_000 }, (_, index) => index + 1).join("\n"));
    client.request("2", "GET", "/api/process/list?status=running");
    assert.deepEqual(bodyOf(await client.next())["processes"], []);
    client.request("3", "GET", "/api/process/no%2Fne");
    const unknown = await client.next();
    assert.deepEqual([unknown["status"], bodyOf(unknown)["code"]], [404, "PROCESS_NOT_FOUND"]);
    client.request("4", "GET", "/api/none");
    assert.equal((await client.next())["status"], 404);
    client.request("5", "GET", "/");
    assert.equal((await client.next())["status"], 200);
  });

  it("streams events, several at a time, until they end or are cancelled", async () => {
    using client = await Client.open(`${shell.url}/api/ws`);
    client.request("long", "POST", "/api/execute/stream", {
      command: "echo begun; sleep 0.5",
      sessionId: "a",
    });
    client.request("short", "POST", "/api/execute/stream", { command: "exit 3", sessionId: "b" });
    const ofShort = (message: Message) => message["id"] === "short";
    const types: unknown[] = [];
    for (
      let message = await client.next(ofShort);
      message["type"] === "stream";
      message = await client.next(ofShort)
    ) {
      const { type, exitCode } = JSON.parse(String(message["data"])) as Message;
      types.push(type, exitCode);
    }
    assert.deepEqual(types, ["start", undefined, "complete", 3]);
    client.send({ type: "cancel", id: "long" });
    client.send({ type: "cancel", id: "never" });
    // The id is free when the stream has ended.
    for (let isBusy = true; isBusy;) {
      client.request("long", "GET", "/api/ping");
      const answer = await client.next(({ id, type }) => id === "long" && type !== "stream");
      isBusy = answer["type"] === "error";
    }
  });

  it("answers bad messages, and goes on", async () => {
    using client = await Client.open(`${shell.url}/ws`);
    for (const bad of [
      "{",
      "[]",
      "{}",
      "null",
      { type: "request", id: 1 },
      { type: "request", id: "x", method: "GET", path: "a" },
    ]) {
      client.send(bad);
      const { type, code, status } = await client.next();
      assert.deepEqual([type, code, status], ["error", "VALIDATION_FAILED", 400]);
    }
    client.socket.send(Buffer.from("{}"));
    assert.equal((await client.next())["status"], 400);
    for (const path of ["//x/api", "/api/process/%ff", "/?x=%", "/../../api/none"]) {
      client.request("odd", "GET", path);
      assert.ok(["response", "error"].includes(String((await client.next())["type"])), path);
    }
    for (const id of ["1", "2", "3"]) client.request(id, "POST", "/api/execute", { command: "sleep 0.2" });
    const { id, code } = await client.next();
    assert.deepEqual([id, code], ["3", "RESOURCE_BUSY"]);
    client.request("1", "GET", "/api/ping");
    assert.equal((await client.next())["code"], "VALIDATION_FAILED");
    assert.equal((await client.next())["status"], 200);
  });

  it("is bounded, and closed to other web sites and other sandboxes' tokens", async () => {
    const refused = async (url: string, headers: Readonly<Record<string, string>> = {}) => {
      const client = new Client(url, headers);
      const outcome = new Promise<string>((resolve) => {
        client.socket.once("error", (error) => resolve(error.message)).once("open", () => resolve("opened"));
      });
      return await outcome.finally(() => client.socket.terminate());
    };
    assert.match(await refused(`${shell.url}/ws`, { origin: "https://elsewhere.example" }), /403/);
    const secured = await shell.server.sandboxes.create({
      template: "base",
      timeoutMs: 600_000,
      secure: true,
    });
    const { id, accessToken } = secured.record;
    const url = `${shell.server.url}/sandboxes/${id}/shell`;
    assert.match(await refused(`${url}/ws`), /404/);
    assert.match(await refused(`${url}/t/x/ws`), /404/);
    using client = await Client.open(`${url}/t/${accessToken}/ws`);
    const closed = once(client.socket, "close");
    await shell.server.sandboxes.kill(id);
    await closed;
    const open = await Promise.all([1, 2, 3].map(() => Client.open(`${shell.url}/ws`)));
    assert.match(await refused(`${shell.url}/ws`), /429/);
    for (const { socket } of open) socket.terminate();
  });
});

it("messages that are not whole, and requests, have room together", { timeout: 60_000 }, async () => {
  await using shell = await startShellServer({}, [], { http: { maxHeldBodies: "1MiB" } });
  const open = () => Client.open(`${shell.url}/ws`);
  using first = await open();
  using second = await open();
  const part = (client: Client) => client.socket.send("x".repeat(700 * 1024), { fin: false });
  part(first);
  part(second);
  const cut = await Promise.race(
    [first, second].map(async (client) => {
      await once(client.socket, "close");
      return client;
    }),
  );
  for (const client of [first, second]) {
    client.socket.terminate();
    if (client !== cut) await once(client.socket, "close");
  }

  using third = await open();
  const path = "/tmp/held.txt";
  // Each gives back what it took, once it is answered.
  for (const id of ["a", "b", "c"]) {
    third.request(id, "POST", "/api/write", { path, content: "x".repeat(400 * 1024) });
    assert.equal((await third.next((message) => message["id"] === id))["status"], 200);
  }
});
