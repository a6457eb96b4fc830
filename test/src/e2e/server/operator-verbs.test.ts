import assert from "node:assert/strict";
import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startCoppice, startCoppiceInTerminal } from "../../harness/server/coppice-command.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const REFUSAL =
  /all tenants are for the operator alone: use a key of the tenant 'default' with the scope 'admin'/;

describe("the verbs of an operator", { timeout: 240_000 }, () => {
  let installation: Installation;
  let server: ServerProcess;
  const keys: Record<string, string> = { operator: API_KEY };

  before(async () => {
    installation = await makeInstallation();
    const { configFile } = installation;
    const config = JSON.parse(await readFile(configFile, "utf8")) as { plugins: Record<string, object> };
    for (const slow of ["jupyter", "templates", "files"]) delete config.plugins[slow];
    await writeFile(configFile, JSON.stringify(config));
    server = await ServerProcess.start(configFile);
    for (const [name, tenant, scopes] of [
      ["acme", "acme", "admin"],
      ["reader", "default", "read,exec"],
    ] as const) {
      const made = startCoppice([
        "keys",
        "create",
        configFile,
        "--tenant",
        tenant,
        "--name",
        name,
        "--scopes",
        scopes,
      ]);
      keys[name] = (await made.end).stdout.toString().trim();
    }
  });
  after(async () => {
    await server.stop();
    await installation.remove();
  });

  const environment = (who = "operator", url = server.url): Readonly<Record<string, string>> => ({
    E2B_API_URL: url,
    E2B_API_KEY: keys[who] ?? "",
    XDG_CONFIG_HOME: installation.directory,
    NO_COLOR: "1",
  });
  const run = (who: string, ...args: readonly string[]) => startCoppice(args, environment(who)).end;
  const text = async (who: string, ...args: readonly string[]): Promise<string> => {
    const { code, stdout, stderr } = await run(who, ...args);
    assert.deepEqual({ code, stderr }, { code: 0, stderr: "" });
    return stdout.toString();
  };
  const create = async (who: string, label = "a=b"): Promise<string> =>
    (await text(who, "create", "--ttl", "10m", "--metadata", label)).trim();

  it("list sandboxes of all tenants, for the operator's key alone", async () => {
    const own = await create("operator");
    const foreign = await create("acme", "a=\u001B[2J");
    const shown = await startCoppiceInTerminal(["ps", "--all-tenants"], environment()).end;
    const lines = shown.stdout.toString().split("\r\n");
    assert.match(lines[0] ?? "", /^TENANT +ID +TEMPLATE +STATE +STARTED +END +CPU +MEMORY +METADATA$/);
    assert.match(lines[1] ?? "", new RegExp(`^acme +${foreign} +base +running .* a=\\\\x1b\\[2J$`));
    assert.match(lines[2] ?? "", new RegExp(`^default +${own} +base +running .* a=b$`));
    assert.ok(!shown.stdout.includes("\u001B"));
    const listed = JSON.parse(await text("operator", "ps", "--all-tenants", "--json", "--metadata", "a=b"));
    assert.deepEqual(
      (listed as { sandboxID: string; tenantID: string }[]).map(({ sandboxID, tenantID }) => [
        sandboxID,
        tenantID,
      ]),
      [[own, "default"]],
    );
    assert.equal(await text("operator", "ps", "--fields", "id"), `${own}\n`);
    for (const who of ["acme", "reader"]) {
      const { code, stdout, stderr } = await run(who, "ps", "--all-tenants");
      assert.deepEqual([code, stdout.toString()], [1, ""]);
      assert.match(stderr, REFUSAL);
    }
    await Promise.all([run("operator", "kill", own), run("acme", "kill", foreign)]);
  });

  it("follow events, each once and in order, also of a time without a connection", async () => {
    const proxy = new Relay(Number(new URL(server.url).port));
    const url = `http://127.0.0.1:${await proxy.open()}`;
    const older = await create("acme");
    const following = startCoppice(
      ["events", "-f", "--all-tenants", "--fields", "sandbox,event"],
      environment("operator", url),
    );
    const inTerminal = startCoppiceInTerminal(["events", "-f", "--sandbox", older], environment("acme", url));
    try {
      await eventually("the past", () => following.printed().includes(`${older}\tcreated\n`));
      await eventually("the past in a terminal", () => / created /.test(inTerminal.printed()));
      const before = following.printed();
      await proxy.cut();
      const made: string[] = [];
      for (let count = 0; count < 3; count += 1) made.push(await create("acme", "a=\u001B[2J"));
      await run("acme", "kill", older, ...made);
      await proxy.open();
      await eventually("the end", () => following.printed().endsWith(`${made.at(-1)}\tkilled\n`), 60_000);
      const after = await create("operator");
      await eventually("what comes", () => following.printed().endsWith(`${after}\tcreated\n`), 60_000);
      assert.deepEqual(
        following.printed().slice(before.length).trim().split("\n").toSorted(),
        [
          ...made.flatMap((id) => [`${id}\tcreated`, `${id}\tkilled`]),
          `${older}\tkilled`,
          `${after}\tcreated`,
        ].toSorted(),
      );
      await eventually("its end in a terminal", () => / killed /.test(inTerminal.printed()), 60_000);
      assert.match(inTerminal.printed(), /^AT +TENANT +SANDBOX +TEMPLATE +EVENT +DETAILS\r\n/);
      assert.equal(inTerminal.printed().match(/ created /g)?.length, 1);
      await run("operator", "kill", after);
    } finally {
      for (const { child } of [following, inTerminal]) child.kill();
      const { stderr } = await following.end;
      await inTerminal.end;
      await proxy.cut();
      assert.match(stderr, /^coppice: the server does not answer, and is asked again: [^\n]*\n$/);
    }
  });

  it("print events to those who may see them, and show no control characters", async () => {
    const id = await create("acme", "a=\u001B[2J");
    const shown = await startCoppiceInTerminal(["events", "--sandbox", id], environment("acme")).end;
    assert.match(shown.stdout.toString(), new RegExp(` acme +${id} +base +created .*u001b\\[2J`));
    assert.ok(!shown.stdout.includes("\u001B"));
    const [line = ""] = (await text("operator", "events", "--all-tenants", "--sandbox", id, "--json")).split(
      "\n",
    );
    assert.equal((JSON.parse(line) as { sandboxTeamId: string }).sandboxTeamId, "acme");
    assert.equal(await text("operator", "events", "--sandbox", id), "");
    const { code, stderr } = await run("acme", "events", "-f", "--all-tenants");
    assert.equal(code, 1);
    assert.match(stderr, REFUSAL);
    assert.match(
      await text("operator", "events", "list", installation.configFile, "--sandbox", id),
      /\tacme\t/,
    );
    assert.match((await run("operator", "events", "--help")).stdout.toString(), /coppice events -f/);
    assert.equal(await text("operator", "__complete", "events", "--all"), "--all-tenants\n");
    await run("acme", "kill", id);
  });

  it("tell programs what they find in a configuration", async () => {
    const { configFile, directory } = installation;
    const bad = `${directory}/bad.yaml`;
    await writeFile(bad, "listeners: { api: { port: 0 } }\nplugins: { access: { keys: [] } }\n");
    assert.equal(JSON.parse(await text("operator", "check", configFile, "--json")).problems.length, 0);
    const wrong = await run("operator", "check", bad, "--json");
    assert.equal(wrong.code, 78);
    const { problems } = JSON.parse(wrong.stdout.toString()) as {
      problems: { message: string; at: string }[];
    };
    assert.match(problems[0]?.message ?? "", /unknown key 'keys'/);
    assert.match(problems[0]?.at ?? "", /bad\.yaml:2:22$/);
    const plugins = JSON.parse(await text("operator", "plugins", configFile, "--json")) as { name: string }[];
    assert.ok(plugins.some(({ name }) => name === "events"));
    // Its server runs: the data directory is taken.
    const examined = await run("operator", "doctor", configFile, "--json");
    const findings = JSON.parse(examined.stdout.toString()) as { severity: string; name: string }[];
    assert.equal(examined.code, 1);
    assert.ok(findings.some(({ severity }) => severity === "fail"));
    assert.ok(findings.some(({ severity, name }) => severity === "ok" && name === "node"));
  });
});

/** Passes connections on, until they are cut. */
class Relay {
  readonly #target: number;
  readonly #sockets = new Set<Socket>();
  #port = 0;
  #server = createServer();

  constructor(target: number) {
    this.#target = target;
  }

  async open(): Promise<number> {
    this.#server = createServer((socket) => {
      const other = connect(this.#target, "127.0.0.1");
      for (const each of [socket, other]) {
        this.#sockets.add(each);
        each.on("error", () => undefined);
        each.once("close", () => this.#sockets.delete(each));
      }
      socket.pipe(other).pipe(socket);
    }).listen(this.#port, "127.0.0.1");
    await once(this.#server, "listening");
    this.#port = (this.#server.address() as AddressInfo).port;
    return this.#port;
  }

  /** No connection is left, and none is taken. */
  async cut(): Promise<void> {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await once(this.#server, "close").catch(() => undefined);
  }
}
