import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { type ClientRequest, request } from "node:http";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { Sandbox } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { packFrame } from "../../harness/clients/connect-frames.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import {
  type Installation,
  makeInstallation,
  namespacePlugins,
  ServerProcess,
} from "../../harness/server/server-process.js";
import {
  type Misbehaviour,
  output,
  standInForAgent,
  type StandInAgent,
  started,
} from "../../harness/server/stand-in-agent.js";

const MEBIBYTE = 2 ** 20;
/** Growth of a server by garbage of ordinary requests, in bytes. */
const GROWTH_MIB = 150;
const PORT = 8_000;
/** Sends a gigabyte to every client. */
const GIGABYTE = `
import socket
server = socket.create_server(("127.0.0.1", ${PORT}))
print("up", flush=True)
connection, _ = server.accept()
connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: ${1024 * MEBIBYTE}\\r\\n\\r\\n")
for _ in range(1024):
    connection.sendall(bytes(${MEBIBYTE}))
`;

async function memoryMiB({ pid }: ServerProcess): Promise<number> {
  const [, kibibytes = "0"] = /^VmRSS:\s+(\d+)/m.exec(await readFile(`/proc/${pid}/status`, "utf8")) ?? [];
  return Number(kibibytes) / 1024;
}

/** Runs a misbehaving guest: another sandbox answers throughout, and the server does not grow. */
async function undisturbed(server: ServerProcess, other: Sandbox, run: () => Promise<void>): Promise<void> {
  const heldMiB = await memoryMiB(server);
  await run();
  for (let round = 0; round < 5; round++) {
    const { stdout } = await other.commands.run("echo answer", { timeoutMs: 20_000 });
    assert.equal(stdout, "answer\n");
    const grownMiB = (await memoryMiB(server)) - heldMiB;
    assert.ok(grownMiB < GROWTH_MIB, `the server grew by ${Math.round(grownMiB)} MiB`);
  }
}

/** Sends a request and does not read the answer. */
async function unread(
  server: ServerProcess,
  sandbox: Sandbox,
  ask: { readonly port: number; readonly path: string; readonly body?: object; readonly stream?: object },
): Promise<ClientRequest> {
  const body = ask.body && JSON.stringify(ask.body);
  const content = ask.stream === undefined ? body : packFrame(JSON.stringify(ask.stream));
  const asked = request(server.url + ask.path, {
    method: content === undefined ? "GET" : "POST",
    headers: {
      "e2b-sandbox-id": sandbox.sandboxId,
      "e2b-sandbox-port": String(ask.port),
      "x-access-token": (sandbox as unknown as { readonly envdAccessToken: string }).envdAccessToken,
      "content-type": ask.stream === undefined ? "application/json" : "application/connect+json",
    },
  });
  asked.on("error", () => undefined);
  asked.end(content);
  const [response] = await once(asked, "response");
  assert.equal(response.statusCode, 200);
  return asked;
}

async function open(): Promise<{ readonly installation: Installation; readonly server: ServerProcess }> {
  const installation = await makeInstallation({
    config: { sandboxes: { defaultBackend: "linux-namespaces" } },
    plugins: namespacePlugins,
  });
  const server = await ServerProcess.start(installation.configFile);
  pointSdkAt(server.url);
  return { installation, server };
}

describe("a hostile guest", { skip: missingForNamespaces(), timeout: 240_000 }, () => {
  let installation: Installation;
  let server: ServerProcess;
  let other: Sandbox;

  before(async () => {
    ({ installation, server } = await open());
    other = await Sandbox.create();
  });
  after(async () => {
    await server.stop();
    await installation.remove();
  });

  it("that floods output, terminals, watches, files and ports, while nobody reads, has none but itself wait", async () => {
    const guest = await Sandbox.create();
    const asked: ClientRequest[] = [];
    await undisturbed(server, other, async () => {
      for (const cmd of ["yes", "yes >&2", "cat /dev/urandom"]) {
        asked.push(await unread(server, guest, { port: 49983, path: "/commands", body: { cmd } }));
      }
      await guest.files.makeDir("busy");
      for (const [method, body] of [
        ["process.Process/Start", { process: { cmd: "yes" }, pty: { size: { cols: 80, rows: 24 } } }],
        ["filesystem.Filesystem/WatchDir", { path: "busy", recursive: true }],
      ] as const) {
        asked.push(await unread(server, guest, { port: 49983, path: `/${method}`, stream: body }));
      }
      const churn = "while :; do mkdir -p busy/a/b; touch busy/a/b/$RANDOM; rm -r busy/a; done";
      await guest.commands.run(`bash -c '${churn}'`, { background: true });
      await guest.commands.run("truncate -s 1G large");
      const large = { port: 49983, path: "/files?path=/home/user/large&username=user" };
      asked.push(await unread(server, guest, large));
      const up = await guest.commands.run(`python3 -u -c '${GIGABYTE}'`, { background: true });
      await eventually("a server inside", () => up.stdout.includes("up"));
      asked.push(await unread(server, guest, { port: PORT, path: "/" }));
    });
    assert.equal((await guest.commands.run("echo still here")).stdout, "still here\n");
    for (const each of asked) each.destroy();
    assert.ok(await guest.kill());
  });

  it("that reads nothing of what it is sent holds up who sends it, and nobody else", async () => {
    const guest = await Sandbox.create();
    let sending: Promise<unknown> = Promise.resolve();
    await undisturbed(server, other, async () => {
      const deaf = await guest.commands.run("sleep 300", { background: true, stdin: true });
      const line = "x".repeat(MEBIBYTE);
      sending = Promise.allSettled(
        Array.from({ length: 16 }, () => guest.commands.sendStdin(deaf.pid, line)),
      );
    });
    assert.ok(await guest.kill());
    await sending;
  });

  it("that kills whatever it can has a sandbox that answers, and ends nothing elsewhere", async () => {
    const guest = await Sandbox.create();
    const bystander = await other.commands.run("while :; do echo tick; sleep 0.05; done", {
      background: true,
    });
    await undisturbed(server, other, async () => {
      const killer = "while :; do kill -9 -1; kill -9 1; kill -SEGV 1; kill -STOP 1; done 2> /dev/null";
      await guest.commands.run(`setsid sh -c '${killer}' > /dev/null 2>&1 &`, {
        background: true,
        user: "root",
      });
    });
    const heard = bystander.stdout.length;
    await eventually("the other's command goes on", () => bystander.stdout.length > heard);
    await bystander.kill();
    // Where it is stopped or killed, too, there is an answer: at the latest when its time is over.
    const answered = await guest.commands.run("exec echo answer", { timeoutMs: 5_000 }).then(
      () => true,
      (error: unknown) => error instanceof Error,
    );
    assert.ok(answered);
    assert.ok(await guest.kill());
  });
});

describe("an agent that is not what it was", { skip: missingForNamespaces(), timeout: 240_000 }, () => {
  const ways: Readonly<Record<string, { readonly misbehave: Misbehaviour; readonly isCut: boolean }>> = {
    "sends more than it was granted": {
      misbehave: ({ id, socket, type }) => {
        if (type !== 0x03) return;
        socket.write(started(id));
        const flood = Buffer.concat(Array.from({ length: 8_192 }, () => output(id, 1)));
        const write = (): void => {
          while (!socket.destroyed && socket.write(flood));
        };
        socket.on("drain", write);
        write();
      },
      isCut: true,
    },
    "sends garbage": {
      misbehave: ({ socket }) => void socket.write(randomBytes(MEBIBYTE)),
      isCut: true,
    },
    "answers nothing, and then reads nothing": {
      misbehave: ({ socket }) => void socket.pause(),
      isCut: false,
    },
  };
  let installation: Installation;
  let server: ServerProcess;
  let bystander: Sandbox;
  const guests = new Map<string, { readonly sandbox: Sandbox; readonly agent: StandInAgent }>();

  before(async () => {
    const { installation: made, server: first } = await open();
    installation = made;
    const names = Object.keys(ways);
    const [other, ...sandboxes] = await Promise.all([...names, "other"].map(() => Sandbox.create()));
    first.signal("SIGKILL");
    await first.ended;
    const agents = await Promise.all(
      Object.values(ways).map(async ({ misbehave }, index) => {
        const id = sandboxes[index]?.sandboxId ?? "";
        return standInForAgent(join(made.directory, "namespaces", "sandboxes", id, "agent.sock"), misbehave);
      }),
    );
    server = await ServerProcess.start(made.configFile);
    const connection = { apiUrl: server.url, sandboxUrl: server.url, apiKey: API_KEY };
    const connect = ({ sandboxId }: Sandbox): Promise<Sandbox> => Sandbox.connect(sandboxId, connection);
    assert.ok(other);
    bystander = await connect(other);
    for (const [index, agent] of agents.entries()) {
      const sandbox = sandboxes[index];
      assert.ok(sandbox);
      guests.set(names[index] ?? "", { sandbox: await connect(sandbox), agent });
    }
  });
  after(async () => {
    // Before the stop, which waits for connections to agents: a real agent's ends with its sandbox.
    for (const { agent } of guests.values()) await agent[Symbol.asyncDispose]();
    await server.stop();
    await installation.remove();
  });

  for (const [name, { isCut }] of Object.entries(ways)) {
    it(`and ${name}, costs its sandbox, and neither memory nor another's time`, async () => {
      const guest = guests.get(name);
      assert.ok(guest);
      const { agent, sandbox } = guest;
      await undisturbed(server, bystander, async () => {
        if (isCut) {
          await assert.rejects(sandbox.commands.run("true"));
          await agent.cut;
          return;
        }
        const options = { requestTimeoutMs: 2_000 };
        const content = "x".repeat(16 * MEBIBYTE);
        const asking = [1, 2, 3, 4].map((number) => sandbox.files.write(`file${number}`, content, options));
        for (const { status } of await Promise.allSettled(asking)) assert.equal(status, "rejected");
      });
      // The server reads no more of a flood once it has closed the connection: only buffers could fill.
      assert.ok(agent.bytesSent() < 8 * MEBIBYTE, `it could send ${agent.bytesSent()} bytes`);
    });
  }
});
