import { execFile, spawn } from "node:child_process";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseEnv, promisify } from "node:util";
import { ETCD } from "@coppice/plugin-fleet/testing";
import { answerIsolated } from "../../harness/host/isolated.js";
import { type Host, TestNetwork } from "../../harness/host/test-network.js";
import { COPPICE, ServerProcess } from "../../harness/server/server-process.js";

/** What the steps of docs/three-hosts.md have printed. */
export interface ThreeHosts {
  readonly health: string;
  /** What etcd says to one without a certificate. */
  readonly refusal: string;
  /** Of the last host, before its server starts. */
  readonly doctor: string;
  /** Lines of `fleet status`, with the sandbox and when it has ended. */
  readonly status: Readonly<Record<"during" | "after", readonly string[]>>;
  readonly sandboxId: string;
  /** What a program in the sandbox has said, run through each host. */
  readonly said: readonly string[];
}

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
/** Longest time of a step. */
const STEP_MS = 20_000;
const run = promisify(execFile);

// The process that the test starts, with three network namespaces as hosts.
answerIsolated(followSteps);

async function followSteps(): Promise<ThreeHosts> {
  const page = await readFile(join(ROOT, "docs/three-hosts.md"), "utf8");
  const { hosts } = await TestNetwork.open(["a", "b", "c"]);
  const home = tmpdir();
  await shell(step(page, "files"), { HOME: home });
  const machines = await Promise.all(hosts.map((host) => Machine.install(host, home)));
  for (const machine of machines) machine.startEtcd();
  const [a, b, c] = machines as readonly Machine[] as readonly [Machine, Machine, Machine];
  const health = await until(
    () => a.follow(step(page, "health")),
    (text) => text.match(/"true"/g)?.length === machines.length,
  );
  const servers = await Promise.all([a, b].map((machine) => machine.startCoppice()));
  const doctor = await c.follow(step(page, "doctor"));
  servers.push(await c.startCoppice());
  const sandboxId = (await a.follow(step(page, "create"))).trim();
  const exec = `id=${sandboxId}\n${step(page, "exec")}`;
  const said = await Promise.all(machines.map((machine) => machine.follow(exec)));
  const status = async (): Promise<readonly string[]> =>
    (await b.follow(step(page, "status"))).trim().split("\n");
  const during = await status();
  await c.follow(`id=${sandboxId}\n${step(page, "kill")}`);
  const after = await status();
  const refusal = await b.follow(
    "curl -sS --cacert /etc/coppice/ca.pem https://10.0.0.1:2379/health 2>&1 || true",
  );
  await Promise.all(servers.map((server) => server.stop()));
  return { health, refusal, doctor, status: { during, after }, sandboxId, said };
}

/** The commands that a comment of the page names. */
function step(page: string, name: string): string {
  const [, commands] =
    new RegExp(`<!-- tested: ${name} -->\\n\\n\`\`\`sh\\n(.*?)\`\`\``, "s").exec(page) ?? [];
  if (commands === undefined) throw new Error(`the page has no step '${name}'`);
  return commands;
}

/** Runs commands in the checkout. @returns what they print. @throws Error with that, when they fail. */
async function shell(
  commands: string,
  environment: NodeJS.ProcessEnv = {},
  enter: readonly string[] = [],
): Promise<string> {
  const coppice = `${process.execPath} ${COPPICE}`;
  const script = commands.replaceAll("npx --no -- coppice", coppice);
  const { stdout } = await run("env", [...enter, "bash", "-e", "-c", script], {
    cwd: ROOT,
    env: { ...process.env, ...environment },
    timeout: STEP_MS,
  });
  return stdout;
}

/** Repeats a command that may fail. @returns the first text that is good, or the last one. */
async function until(act: () => Promise<string>, isGood: (text: string) => boolean): Promise<string> {
  const deadline = performance.now() + STEP_MS;
  for (;;) {
    const text = await act().catch(String);
    if (isGood(text) || performance.now() > deadline) return text;
    await pause(200);
  }
}

/** A host, whose folders are below one of this process, as all of them share its files. */
class Machine {
  readonly #host: Host;
  readonly #directory: string;

  /** Puts the files that the steps made where the steps want them. */
  static async install(host: Host, home: string): Promise<Machine> {
    const machine = new Machine(host, join(home, `host-${host.name}`));
    await mkdir(machine.#directory);
    await rename(join(home, "fleet", host.name), machine.#place("/etc/coppice"));
    for (const name of ["fleet.yaml", "environment", "etcd"]) {
      const path = join(machine.#place("/etc/coppice"), name);
      await writeFile(path, machine.#place(await readFile(path, "utf8")));
    }
    return machine;
  }

  private constructor(host: Host, directory: string) {
    this.#host = host;
    this.#directory = directory;
  }

  /** Paths of the page, as they are on this host. etcd reads the files of its unit from Coppice's folder. */
  #place(text: string): string {
    return text
      .replaceAll(/\/etc\/(coppice|etcd)/g, join(this.#directory, "etc"))
      .replaceAll("/var/lib", join(this.#directory, "data"))
      .replaceAll("/opt/coppice/", ROOT);
  }

  follow(commands: string): Promise<string> {
    return shell(this.#place(commands), {}, this.#host.enter);
  }

  startEtcd(): void {
    const script = `set -a; . ${this.#place("/etc/coppice/etcd")}; exec ${ETCD} --logger zap --log-level fatal`;
    spawn("env", [...this.#host.enter, "bash", "-c", script], { stdio: "ignore" });
  }

  async startCoppice(): Promise<ServerProcess> {
    const folder = this.#place("/etc/coppice");
    const environment = parseEnv(await readFile(join(folder, "environment"), "utf8"));
    return ServerProcess.start(join(folder, "fleet.yaml"), environment, this.#host.enter);
  }
}
