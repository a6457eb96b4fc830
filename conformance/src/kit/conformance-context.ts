import assert from "node:assert/strict";
import { randomBytes, randomInt } from "node:crypto";
import { mkdtemp, readFile, readdir, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type {
  Command,
  ErrorCode,
  Exit,
  FileInfo,
  ImageId,
  ImageSource,
  Process,
  Sandbox,
  SandboxBackend,
  SandboxSpec,
  User,
  VolumeId,
} from "@coppice/core/backend";
import { type ImageLayoutOptions, type TarEntry, writeImageLayout } from "@coppice/core/testing";
import { CaseSkipped, type ConformanceSubject } from "./conformance-case.js";
import { tinyRoot } from "./tiny-image.js";

const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const POLL_MS = 20;

/** A program that ran to its end. */
export interface Finished {
  readonly exit: Exit;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
}

/** A host directory that no sandbox may read or change through its files. */
export interface Canary {
  /** Absolute path on the host. */
  readonly directory: string;
  readonly file: string;
  readonly secret: string;
  /** Modification time of the file, which identifies it wherever it is listed. */
  readonly modifiedAtMs: number;
  /** @throws AssertionError when anything in the directory changed. */
  verify(): Promise<void>;
}

/** A program that a case starts. */
export interface StartOptions extends Partial<Omit<Command, "path" | "args">> {
  /** Another sandbox than the case's own. */
  readonly in?: Sandbox;
}

/** A shell script that a case runs. */
export interface ScriptOptions extends StartOptions {
  readonly args?: readonly string[];
}

export interface ImageOptions extends Partial<Pick<ImageSource, "maxBytes" | "maxEntries">> {
  readonly signal?: AbortSignal;
}

/** Tools of a case: a sandbox of its own, and helpers for common steps. */
export class ConformanceContext {
  readonly backend: SandboxBackend;
  readonly subject: ConformanceSubject;
  /** Ids of all sandboxes that this run asked for. */
  readonly ids: string[] = [];
  readonly #sandboxes = new Map<Sandbox, SandboxSpec>();
  readonly #volumes: VolumeId[] = [];
  readonly #images: ImageId[] = [];
  readonly #canaries: string[] = [];
  readonly #streams: Duplex[] = [];
  #root: Promise<readonly TarEntry[]> | undefined;
  #own: { readonly sandbox: Sandbox; readonly user: User } | undefined;

  constructor(subject: ConformanceSubject) {
    this.subject = subject;
    this.backend = subject.backend;
  }

  async open(): Promise<void> {
    const sandbox = await this.provision();
    this.#own = { sandbox, user: await sandbox.user() };
  }

  /** Destroys every sandbox, volume and connection of the case. */
  async close(): Promise<void> {
    for (const stream of this.#streams) stream.destroy();
    const endings = await Promise.allSettled([...this.#sandboxes.keys()].map((sandbox) => sandbox.destroy()));
    for (const id of this.#volumes) await this.backend.volumes?.remove(id);
    for (const id of this.#images) await this.backend.images?.remove(id);
    for (const directory of this.#canaries) await rm(directory, { recursive: true, force: true });
    const failures = endings.flatMap((ending) => (ending.status === "rejected" ? [ending.reason] : []));
    if (failures.length > 0) throw new AggregateError(failures, "a sandbox could not be destroyed");
  }

  get sandbox(): Sandbox {
    return this.#opened.sandbox;
  }

  get user(): User {
    return this.#opened.user;
  }

  /** Makes another sandbox, which ends with the case. @param changes to the case's specification. */
  async provision(
    changes: Partial<Omit<SandboxSpec, "id">> = {},
    signal: AbortSignal = new AbortController().signal,
  ): Promise<Sandbox> {
    const spec: SandboxSpec = {
      template: "base",
      limits: {},
      allowInternetAccess: true,
      ...this.subject.specification,
      ...changes,
      id: `conform${randomBytes(8).toString("hex")}`,
    };
    this.ids.push(spec.id);
    const sandbox = await this.backend.provision(spec, signal);
    this.#sandboxes.set(sandbox, spec);
    return sandbox;
  }

  /** Starts a stopped sandbox again with its old specification. */
  async startAnew(sandbox: Sandbox): Promise<void> {
    const spec = this.#sandboxes.get(sandbox);
    assert.ok(spec && sandbox.stopping, "the sandbox has no stopping");
    await sandbox.stopping.start(spec, new AbortController().signal);
  }

  /** Makes a volume, which is removed after the case's sandboxes. */
  async volume(sizeMiB = 64): Promise<VolumeId> {
    assert.ok(this.backend.volumes, "the backend keeps no volumes");
    const id = `conform${randomBytes(8).toString("hex")}`;
    this.#volumes.push(id);
    await this.backend.volumes.make({ id, sizeMiB });
    return id;
  }

  /**
   * Unpacks an image of a small root and further layers, which is removed after the case's sandboxes. Skips the case on
   * a host that lacks a program for it.
   */
  async image(
    layers: ImageLayoutOptions["layers"],
    { signal = new AbortController().signal, ...limits }: ImageOptions = {},
  ): Promise<ImageId> {
    assert.ok(this.backend.images, "the backend has no images");
    this.#root ??= tinyRoot(this);
    const layout = await mkdtemp(join(tmpdir(), "coppice-layout-"));
    try {
      await writeImageLayout(layout, { layers: [await this.#root, ...layers] });
      const source = { layout, reference: "image", maxBytes: 2 ** 30, maxEntries: 10_000, ...limits };
      const id = this.newImage();
      await this.backend.images.unpack(id, source, signal);
      return id;
    } catch (error) {
      const isUnable = error instanceof SandboxError && error.code === "failed_precondition";
      throw isUnable ? new CaseSkipped(error.message) : error;
    } finally {
      await rm(layout, { recursive: true });
    }
  }

  /** Id for an image, which is removed after the case's sandboxes. */
  newImage(): ImageId {
    const id = `conform${randomBytes(8).toString("hex")}`;
    this.#images.push(id);
    return id;
  }

  /** Connects to a port of a sandbox, until the case ends. */
  async dial(port: number, sandbox: Sandbox = this.sandbox): Promise<Duplex> {
    const stream = await sandbox.dial(port, new AbortController().signal);
    // Errors of a connection at the end of its sandbox, after a failed case, do not matter.
    stream.on("error", () => undefined);
    this.#streams.push(stream);
    return stream;
  }

  home(name: string): string {
    return `${this.user.home}/${name}`;
  }

  /** The minimal environment from a server. */
  environment(sandbox: Sandbox = this.sandbox): Record<string, string> {
    const { name, home } = this.user;
    return { PATH, HOME: home, USER: name, LOGNAME: name, E2B_SANDBOX_ID: sandbox.id };
  }

  async startProgram(
    path: string,
    args: readonly string[] = [],
    options: StartOptions = {},
  ): Promise<Process> {
    const { in: sandbox = this.sandbox, env, ...command } = options;
    return sandbox.spawn({ path, args, env: { ...this.environment(sandbox), ...env }, ...command });
  }

  /** Starts a shell script in the home; `$1` and on are `args`. */
  async start(script: string, { args = [], ...options }: ScriptOptions = {}): Promise<Process> {
    return this.startProgram("/bin/sh", ["-c", script, "sh", ...args], options);
  }

  /** Runs a shell script to its end, with an empty stdin. */
  async shell(script: string, options: ScriptOptions = {}): Promise<Finished> {
    return this.finish(await this.start(script, { input: "none", ...options }));
  }

  /** Runs a shell script that has to succeed. Returns its stdout as text. */
  async succeed(script: string, options: ScriptOptions = {}): Promise<string> {
    const finished = await this.shell(script, options);
    assert.deepEqual(finished.exit, { code: 0 }, `script failed: ${script}\n${finished.stderr.toString()}`);
    return finished.stdout.toString();
  }

  /** Waits for the end of a process and of its output. */
  async finish(process: Process): Promise<Finished> {
    const stdout: Uint8Array[] = [];
    const stderr: Uint8Array[] = [];
    for await (const { stream, data } of process.output) (stream === "stderr" ? stderr : stdout).push(data);
    return { exit: await process.exit, stdout: Buffer.concat(stdout), stderr: Buffer.concat(stderr) };
  }

  async write(path: string, data: string | Uint8Array | AsyncIterable<Uint8Array>): Promise<FileInfo> {
    const isStream = typeof data !== "string" && !(data instanceof Uint8Array);
    return this.sandbox.files.write(path, isStream ? data : chunked(Buffer.from(data)));
  }

  async read(path: string, sandbox: Sandbox = this.sandbox): Promise<Buffer> {
    await using file = await sandbox.files.read(path);
    return Buffer.concat(await Array.fromAsync(file.content()));
  }

  async list(path: string, depth = 1): Promise<FileInfo[]> {
    return Array.fromAsync(this.sandbox.files.list(path, depth));
  }

  /** @throws AssertionError unless the promise rejects with a SandboxError of one of the codes. */
  async refuses(
    what: Promise<unknown> | (() => Promise<unknown>),
    codes: ErrorCode | readonly ErrorCode[],
    message?: RegExp,
  ): Promise<void> {
    await assert.rejects(what, (error) => {
      assert.ok(error instanceof SandboxError, `expected a SandboxError, got ${String(error)}`);
      assert.ok(
        [codes].flat().includes(error.code),
        `expected ${String(codes)}, got ${error.code}: ${error.message}`,
      );
      if (message !== undefined) assert.match(error.message, message);
      return true;
    });
  }

  /** Waits until a condition holds. @throws AssertionError naming it. */
  async until(what: string, check: () => Promise<boolean> | boolean, timeoutMs = 5_000): Promise<void> {
    const endMs = performance.now() + timeoutMs;
    while (!(await check())) {
      assert.ok(performance.now() < endMs, `${what}: not within ${timeoutMs} ms`);
      await sleep(POLL_MS);
    }
  }

  /** @throws AssertionError when the promise does not settle in time. */
  async within<T>(timeoutMs: number, what: string, promise: Promise<T>): Promise<T> {
    const late = new AbortController();
    try {
      return await Promise.race([
        promise,
        sleep(timeoutMs, undefined, { signal: late.signal }).then(() =>
          assert.fail(`${what}: not within ${timeoutMs} ms`),
        ),
      ]);
    } finally {
      late.abort();
    }
  }

  /** True when a process is alive, as other processes of the sandbox see it. A zombie is not. */
  async isAlive(pid: number | string, sandbox: Sandbox = this.sandbox): Promise<boolean> {
    // Linux has the state in a file, and FreeBSD's base system has ps(1).
    const script = `kill -0 "$1" && ! grep -q "^State:.Z" "/proc/$1/status" 2> /dev/null &&
      case "$(ps -o state= -p "$1" 2> /dev/null)" in Z*) false ;; esac`;
    const { exit } = await this.shell(script, { args: [String(pid)], in: sandbox });
    return exit.code === 0;
  }

  /** Makes a host directory with one file, `secret.txt`, both removed after the case. */
  async canary(parent = tmpdir()): Promise<Canary> {
    const directory = await mkdtemp(join(parent, "coppice-canary-"));
    this.#canaries.push(directory);
    const file = join(directory, "secret.txt");
    const secret = randomBytes(16).toString("hex");
    await writeFile(file, secret);
    const modifiedAtMs = 1_000 * randomInt(100_000_000, 900_000_000);
    await utimes(file, modifiedAtMs / 1_000, modifiedAtMs / 1_000);
    const { mode, uid } = await stat(file);
    return {
      directory,
      file,
      secret,
      modifiedAtMs,
      async verify() {
        const names = await readdir(directory);
        assert.deepEqual(names, ["secret.txt"], "the sandbox changed a directory of the host");
        const found = await readFile(file, "utf8");
        assert.equal(found, secret, "the sandbox changed a file of the host");
        const now = await stat(file);
        assert.equal(now.mtimeMs, modifiedAtMs, "the sandbox wrote a file of the host");
        assert.deepEqual([now.mode, now.uid], [mode, uid], "the sandbox changed whose a file of the host is");
      },
    };
  }

  get #opened(): { readonly sandbox: Sandbox; readonly user: User } {
    assert.ok(this.#own, "the case has no sandbox yet");
    return this.#own;
  }
}

export async function* chunked(data: Uint8Array, chunkBytes = 65_536): AsyncGenerator<Uint8Array> {
  for (let start = 0; start < data.byteLength; start += chunkBytes) {
    yield data.subarray(start, start + chunkBytes);
  }
}
