import { request } from "node:http";
import { setTimeout as pause } from "node:timers/promises";
import type { SeededRandom } from "@coppice/core/testing";
import { CommandExitError, FileType, Sandbox } from "@e2b/code-interpreter";
import type { Tally } from "./tally.js";

export interface SoakedSandboxOptions {
  readonly sandbox: Sandbox;
  readonly random: SeededRandom;
  readonly tally: Tally;
  /** Its backend can pause it and keep its files. */
  readonly hasFacets: boolean;
}

/** The SDK keeps the timer of a cell whose request failed, and with it the process, until this has passed. */
const DOOMED_REQUEST_MS = 2_000;

/** Longest stay of a client that does not wait for its answer, in milliseconds. */
const IMPATIENT_MS = 120;
const CODE_PORT = "49999";
const LARGE_BYTES = 300_000;

/** A sandbox and a client's operations on it. Each operation checks its result. */
export class SoakedSandbox {
  readonly #options: SoakedSandboxOptions;
  #cells = 0;
  #files = 0;
  #isDoomed = false;

  constructor(options: SoakedSandboxOptions) {
    this.#options = options;
  }

  get id(): string {
    return this.#options.sandbox.sandboxId;
  }

  /**
   * From now on the sandbox may end at any moment: errors are no faults, and operations may or may not have an
   * effect.
   */
  doom(): void {
    this.#isDoomed = true;
  }

  /** Runs one operation, or a few at a time. */
  async doSomething(): Promise<void> {
    const { random, hasFacets } = this.#options;
    // A resumption sets a new time-out, so a sandbox that is to end by its time-out is not paused.
    if (hasFacets && !this.#isDoomed && random.below(8) === 0)
      await random.of([() => this.#pause(), () => this.#branch()])();
    else await Promise.all(Array.from({ length: 1 + random.below(3) }, () => this.#doOne()));
  }

  async #doOne(): Promise<void> {
    await this.#options.random.of([
      () => this.#runCommand(),
      () => this.#runLargeCommand(),
      () => this.#leaveCommand(),
      () => this.#killCommand(),
      () => this.#useFiles(),
      () => this.#leaveUpload(),
      () => this.#runCode(),
      () => this.#leaveCode(),
    ])();
  }

  async #runCommand(): Promise<void> {
    const { sandbox, random } = this.#options;
    const code = random.below(3);
    await this.#attempt("commands", `exit ${code}`, async () => {
      const text = `${random.below(1e9)}`;
      const end = await sandbox.commands.run(`echo ${text}; echo ${text} >&2; exit ${code}`).catch(exitOf);
      assertEqual([end.stdout, end.stderr, end.exitCode], [`${text}\n`, `${text}\n`, code]);
    });
  }

  async #runLargeCommand(): Promise<void> {
    await this.#attempt("commands", "a large output", async () => {
      const { stdout } = await this.#options.sandbox.commands.run(
        `head -c ${LARGE_BYTES} /dev/zero | tr '\\0' x`,
      );
      assertEqual(stdout.length, LARGE_BYTES);
    });
  }

  /** The client leaves before the command ends. */
  async #leaveCommand(): Promise<void> {
    const { sandbox, random, tally } = this.#options;
    tally.perhaps("commands");
    tally.sure("disconnects");
    const signal = AbortSignal.timeout(1 + random.below(IMPATIENT_MS));
    await sandbox.commands
      .run("for i in 1 2 3 4 5; do echo $i; sleep 0.1; done", { signal })
      .catch(() => undefined);
  }

  async #killCommand(): Promise<void> {
    await this.#attempt("commands", "a killed command", async () => {
      const handle = await this.#options.sandbox.commands.run("exec sleep 1000", { background: true });
      assertEqual(await handle.kill(), true);
      const { exitCode } = await handle.wait().catch(exitOf);
      assertEqual(exitCode === 0, false);
    });
  }

  async #useFiles(): Promise<void> {
    const { sandbox, random } = this.#options;
    this.#files += 1;
    const path = `soak/${this.#files}.bin`;
    await this.#attempt("files", "files", async () => {
      const bytes = random.bytes(random.below(20_000));
      await sandbox.files.write(path, new Blob([new Uint8Array(bytes)]));
      const read = await sandbox.files.read(path, { format: "bytes" });
      assertEqual(Buffer.compare(Buffer.from(read), bytes), 0);
      const { type, size } = await sandbox.files.getInfo(path);
      assertEqual([type, size], [FileType.FILE, bytes.length]);
      await sandbox.files.remove(path);
      assertEqual(await sandbox.files.exists(path), false);
    });
  }

  /** A client that goes away in the middle of an upload. */
  async #leaveUpload(): Promise<void> {
    this.#options.tally.sure("disconnects");
    await this.#leave("49983", "/files?path=soak/half.bin", {
      "content-type": "application/octet-stream",
      "content-length": "1000000",
    });
  }

  async #runCode(): Promise<void> {
    const { sandbox } = this.#options;
    this.#cells += 1;
    const name = `cell_${this.#cells}`;
    await this.#attempt("executions", "a cell", async () => {
      const options = this.#isDoomed ? { requestTimeoutMs: DOOMED_REQUEST_MS } : {};
      const { text, error } = await sandbox.runCode(`${name} = ${this.#cells}; ${name}`, options);
      assertEqual([text, error?.value], [name.slice("cell_".length), undefined]);
    });
  }

  async #leaveCode(): Promise<void> {
    const { tally } = this.#options;
    tally.perhaps("executions");
    tally.sure("disconnects");
    const body = JSON.stringify({ code: "import time\nfor _ in range(3):\n  print(_); time.sleep(0.05)" });
    await this.#leave(
      CODE_PORT,
      "/execute",
      { "content-type": "application/json", "content-length": String(body.length) },
      body,
    );
  }

  /** The state of a kernel and a running process survive a pause. */
  async #pause(): Promise<void> {
    const { sandbox, random } = this.#options;
    const number = random.below(1e9);
    await this.#attempt("executions", "a cell before a pause", async () => {
      await sandbox.runCode(`kept = ${number}`);
    });
    await this.#attempt("pauses", "a pause", async () => {
      assertEqual(await sandbox.pause(), true);
    });
    await this.#attempt("resumptions", "a resumption", async () => {
      await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000 });
    });
    await this.#attempt("executions", "a cell after a pause", async () => {
      assertEqual((await sandbox.runCode("kept")).text, String(number));
    });
  }

  /** A snapshot or a fork has the files of its source; later changes are separate. */
  async #branch(): Promise<void> {
    const { sandbox, random } = this.#options;
    const text = `${random.below(1e9)}`;
    await this.#attempt("files", "a file before a snapshot", () => sandbox.files.write("branch.txt", text));
    if (random.below(2) === 0) {
      await this.#attempt("sandboxes", "a fork", async () => {
        const [fork] = await sandbox.fork({ count: 1 });
        if (!(fork instanceof Sandbox)) throw fork ?? new Error("there is no fork");
        await endAfter(fork, async () => assertEqual(await fork.files.read("branch.txt"), text));
      });
      return;
    }
    let snapshot: string | undefined;
    await this.#attempt("snapshots", "a snapshot", async () => {
      snapshot = (await sandbox.createSnapshot()).snapshotId;
    });
    if (snapshot === undefined) return;
    const name = snapshot;
    await this.#attempt("sandboxes", "a sandbox from a snapshot", async () => {
      const copy = await Sandbox.create(name, { timeoutMs: 600_000 });
      await endAfter(copy, async () => assertEqual(await copy.files.read("branch.txt"), text));
    });
    await this.#attempt("removals", "the removal of a snapshot", async () => {
      assertEqual(await Sandbox.deleteSnapshot(name), true);
    });
  }

  /** Runs an operation that must succeed, and counts it. */
  async #attempt(
    what: Parameters<Tally["sure"]>[0],
    words: string,
    run: () => Promise<unknown>,
  ): Promise<void> {
    const { tally } = this.#options;
    try {
      await run();
      tally.sure(what);
    } catch (error) {
      tally.perhaps(what);
      if (!this.#isDoomed) tally.fault(`${words}: ${String(error)}`);
    }
  }

  /** Sends a request and hangs up before its answer is there, or in the middle of it. */
  async #leave(
    port: string,
    path: string,
    headers: Readonly<Record<string, string>>,
    body: string | Uint8Array = new Uint8Array(1000),
  ): Promise<void> {
    const { sandbox, random } = this.#options;
    const outgoing = request(new URL(path, process.env["E2B_SANDBOX_URL"]), {
      method: "POST",
      agent: false,
      headers: {
        ...headers,
        "e2b-sandbox-id": sandbox.sandboxId,
        "e2b-sandbox-port": port,
        ...accessHeaders(sandbox),
      },
    });
    // The client has left: the outcome is ignored.
    outgoing.on("error", () => undefined);
    outgoing.on("response", (incoming) => incoming.on("error", () => undefined).resume());
    outgoing.write(body);
    await pause(1 + random.below(IMPATIENT_MS));
    outgoing.destroy();
  }
}

/** The SDK has the token, but does not expose it. */
function accessHeaders(sandbox: Sandbox): Readonly<Record<string, string>> {
  const { envdAccessToken } = sandbox as unknown as { readonly envdAccessToken?: string };
  return envdAccessToken === undefined ? {} : { "x-access-token": envdAccessToken };
}

async function endAfter(sandbox: Sandbox, use: () => Promise<void>): Promise<void> {
  try {
    await use();
  } finally {
    await sandbox.kill();
  }
}

function exitOf(error: unknown) {
  if (error instanceof CommandExitError) return error;
  throw error;
}

function assertEqual(actual: unknown, expected: unknown): void {
  const [found, wanted] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (found !== wanted) throw new Error(`got ${found}, expected ${wanted}`);
}
