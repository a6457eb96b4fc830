import assert from "node:assert/strict";
import { mkdtemp, readFile, readdir, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, posix } from "node:path";
import { Duplex, PassThrough } from "node:stream";
import { after, before, describe, it } from "node:test";
import {
  Backends,
  type FileInfo,
  type OpenFile,
  type Output,
  type Process,
  type SandboxBackend,
  type WatchEvent,
  type WriteOptions,
} from "@coppice/core/backend";
import { conformanceCases, runCase } from "@coppice/conformance";
import { startTestServer, type TestServer } from "@coppice/core/testing";
import linuxNamespaces from "@coppice/plugin-linux-namespaces";
import localProcess from "@coppice/plugin-local-process";
import { missingForNamespaces } from "../harness/server/on-each-backend.js";
import { PYTHON } from "../harness/host/python.js";
import { type Alterations, alter } from "./altered-backend.js";

/** A way to be broken, and the case that has to notice it. */
interface Defect extends Alterations {
  readonly defect: string;
  /** Its name. */
  readonly noticedBy: string;
  readonly says: RegExp;
}

let server: TestServer;

/** Runs the case with the backend as it is, and as it is broken. */
async function expectNoticed(
  real: SandboxBackend,
  { defect, noticedBy, says, ...alterations }: Defect,
): Promise<void> {
  const each = conformanceCases.find(({ name }) => name === noticedBy);
  assert.ok(each, `there is no case '${noticedBy}'`);
  const { outcome, reason } = await runCase(each, {
    backend: alter(real, alterations),
    limits: ["processes", "memoryMiB"],
    hasOwnUsers: true,
    [Symbol.asyncDispose]: () => Promise.resolve(),
  });
  assert.equal(outcome, "failed", `'${noticedBy}' does not notice that ${defect}`);
  assert.match(reason ?? "", says);
}

describe("A backend that says that it isolates, and does not, is found out and does no harm", () => {
  before(async () => {
    server = await startTestServer({ plugins: [[localProcess, {}]] });
  });
  after(() => server.stop());

  const cases: readonly (readonly [name: string, says: RegExp])[] = [
    ["files of the host are invisible to processes, wherever they lie", /strictly equal|changed/],
    ["processes of other sandboxes and of the host are invisible", /strictly equal|visible/],
    ["sockets of other sandboxes and of the host are out of reach, abstract ones too", /deep-equal/],
    ["two sandboxes may use one port, and each is dialled by its own", /no port/],
    ["without internet access there is no way out, and no interface but loopback", /cannot be kept from/],
    ["mounts, devices, other namespaces and the first process are denied, to root as well", /not tried/],
    ["files of the kernel can be neither read nor written, by root as well", /not tried/],
    ["the signals of a sandbox stay in it", /not tried/],
    ["a sandbox has no more processes than its limit, and a fork bomb in it disturbs no others", /not tried/],
    [
      "a process cannot take more memory than its sandbox has, and no others are affected",
      /although its limit/,
    ],
    ["a guest that kills everything it can leaves a sandbox that still answers, or is gone", /not tried/],
  ];
  for (const [noticedBy, says] of cases) {
    it(noticedBy, { timeout: 240_000 }, async () => {
      const real = server.resolve(Backends).get("local-process");
      await expectNoticed(real, { defect: "it isolates nothing", isolated: true, noticedBy, says });
    });
  }
});

const text = (data: Uint8Array): string => Buffer.from(data).toString();

const defects: readonly Defect[] = [
  // Processes and terminals.
  {
    defect: "commands inherit the server's environment",
    noticedBy: "nothing of the server's own environment is inherited",
    says: /visible/,
    sandbox: (real) => ({
      spawn: (command) =>
        real.spawn({ ...command, env: { ...(process.env as Record<string, string>), ...command.env } }),
    }),
  },
  {
    defect: "everybody is root",
    noticedBy: "the default user cannot touch what is root's",
    says: /succeeded/,
    sandbox: (real) => ({
      spawn: (command) => real.spawn({ ...command, cwd: command.cwd ?? "/home/user", user: "root" }),
    }),
  },
  {
    defect: "nobody is root",
    noticedBy: "a process has the ids, the groups and the home of the user that it is started as",
    says: /deep-equal/,
    sandbox: (real) => ({ spawn: (command) => real.spawn({ ...command, user: undefined }) }),
  },
  {
    defect: "commands that ask for a terminal get pipes",
    noticedBy: "stdin, stdout and stderr are one terminal, whose output is one stream",
    says: /match/,
    sandbox: (real) => ({ spawn: (command) => real.spawn({ ...command, terminal: undefined }) }),
  },
  {
    defect: "the size of a terminal is forgotten",
    noticedBy: "a terminal has the size that was asked for",
    says: /equal/,
    sandbox: (real) => ({
      spawn: (command) =>
        real.spawn({ ...command, ...(command.terminal && { terminal: { columns: 80, rows: 24 } }) }),
    }),
  },
  {
    defect: "resizing does nothing",
    noticedBy: "a new size is visible, and signalled by SIGWINCH",
    says: /50 132/,
    process: () => ({ resize: () => Promise.resolve() }),
  },
  {
    defect: "input to a terminal is decoded and encoded again",
    noticedBy: "in raw mode every byte goes in and comes out as it is",
    says: /differ|within|equal|stdin/,
    process: (real) => ({ write: (data) => real.write(Buffer.from(text(data))) }),
  },
  {
    defect: "the last of the output is lost",
    noticedBy: "all output of a program comes before the end, and its exit code after it",
    says: /equal/,
    process: (real) => ({ output: withoutLast(real.output) }),
  },
  {
    defect: "Ctrl-C is taken for text",
    noticedBy: "Ctrl-C interrupts the program in the foreground",
    says: /caught/,
    process: (real) => ({ write: (data) => real.write(Buffer.from(text(data).replaceAll("\x03", "^C"))) }),
  },
  {
    defect: "output is kept in the server while nobody reads it",
    noticedBy: "a slow reader slows a program that writes to a terminal",
    says: /stands still|nobody took/,
    process: (real) => ({ output: hoarded(real) }),
  },
  // Files.
  {
    defect: "metadata is merged with what was there",
    noticedBy: "metadata is set, replaced as a whole, kept when it is not mentioned, and cleared",
    says: /deep-equal/,
    files: (real) => ({
      async write(path, data, options: WriteOptions = {}) {
        const old = await real.stat(path).catch(() => undefined);
        return real.write(path, data, { ...options, metadata: { ...old?.metadata, ...options.metadata } });
      },
    }),
  },
  {
    defect: "what is written belongs to root",
    noticedBy: "written files and their new parents belong to the user that was named",
    says: /'root'/,
    files: (real) => ({
      write: (path, data, options) => real.write(path, data, { ...options, user: "root" }),
    }),
  },
  ...onTheHost(),
  // Watches.
  {
    defect: "every change is told twice",
    noticedBy: "a new small file is reported as create, chmod and write, at once",
    says: /deep-equal/,
    ...watching(async function* (events) {
      for await (const event of events) yield* [event, event];
    }),
  },
  {
    defect: "what is made right after its directory is missed",
    noticedBy: "an entry that is made right after its directory is reported once",
    says: /deep-equal/,
    ...watching(async function* (events) {
      for await (const event of events) if (!/^d\d+\/e\/f$/.test(event.name)) yield event;
    }),
  },
  {
    defect: "events are dropped without a word when there are many",
    noticedBy: "a watch whose reader falls behind reports all events, or that some are lost",
    says: /without a word/,
    ...watching(async function* (events) {
      let told = 0;
      try {
        for await (const event of events) {
          if (++told > 1_000) return;
          yield event;
        }
      } catch {
        // An overflow without an error.
      }
    }),
  },
  // Network.
  {
    defect: "what comes from a port is kept in the server while nobody reads it",
    noticedBy: "a slow reader of a connection slows its sender",
    says: /stands still|nobody took/,
    sandbox: (real) => ({
      async dial(port, signal) {
        const stream = await real.dial(port, signal);
        const hoard = new PassThrough({ highWaterMark: Number.MAX_SAFE_INTEGER });
        stream.pipe(hoard);
        stream.on("error", () => hoard.destroy());
        return Duplex.from({ writable: stream, readable: hoard });
      },
    }),
  },
  // Facets.
  {
    defect: "pausing does nothing",
    noticedBy: "a paused sandbox stands still and goes on where it was",
    says: /while it is paused/,
    sandbox: () => ({ pausing: { pause: () => Promise.resolve(), resume: () => Promise.resolve() } }),
  },
  {
    defect: "resuming does nothing",
    noticedBy: "requests to a paused sandbox are done after it resumed, or refused",
    says: /is answered: not within/,
    sandbox: ({ pausing }) => ({
      pausing: { pause: async () => pausing?.pause(), resume: () => Promise.resolve() },
    }),
  },
  {
    defect: "stopping ends nothing",
    noticedBy: "a stopped sandbox has no processes, keeps its files, and starts again with them",
    says: /exit is known: not within/,
    sandbox: () => ({ stopping: { stop: () => Promise.resolve(), start: () => Promise.resolve() } }),
  },
  {
    defect: "a sandbox that begins anew has lost a file",
    noticedBy: "a stopped sandbox has no processes, keeps its files, and starts again with them",
    says: /strictly equal/,
    sandbox: (real) => ({
      stopping: {
        stop: async () => real.stopping?.stop(),
        start: async (spec, signal) => {
          await real.stopping?.start(spec, signal);
          await real.files.remove("/home/user/file");
        },
      },
    }),
  },
  {
    defect: "a stopped sandbox cannot be destroyed",
    noticedBy: "a sandbox can be destroyed when it is stopped, and while it is being stopped or started",
    says: /it is destroyed: not within|broken/,
    sandbox: (real) => {
      let isStopped = false;
      return {
        stopping: {
          stop: async () => {
            isStopped = true;
            await real.stopping?.stop();
          },
          start: async (spec, signal) => {
            await real.stopping?.start(spec, signal);
            isStopped = false;
          },
        },
        destroy: async () => {
          const refuses = isStopped;
          await real.destroy();
          if (refuses) throw new Error("broken");
        },
      };
    },
  },
  // Isolation.
  {
    defect: "limits are ignored",
    noticedBy: "a sandbox has no more processes than its limit, and a fork bomb in it disturbs no others",
    says: /although its limit/,
    specification: (spec) => ({ ...spec, limits: {} }),
  },
  {
    defect: "limits are ignored",
    noticedBy: "the memory of a sandbox is that of all its processes and files in memory together",
    says: /320 MiB together/,
    specification: (spec) => ({ ...spec, limits: {} }),
  },
  {
    defect: "the first process has the server's environment",
    noticedBy: "no process of a sandbox has anything of the server's environment",
    says: /visible/,
    sandbox: (real) => ({
      spawn: (command) => real.spawn({ ...command, env: { ...command.env, ...secrets() } }),
    }),
  },
  {
    defect: "a sandbox whose processes were killed never answers again",
    noticedBy: "a guest that kills everything it can leaves a sandbox that still answers, or is gone",
    says: /answers, or says that it has ended/,
    sandbox(real) {
      let isStuck = false;
      return {
        spawn(command) {
          if (isStuck) return new Promise(() => undefined);
          isStuck = command.args.some((each) => each.includes("kill -9 -1"));
          return real.spawn(command);
        },
      };
    },
  },
];

describe("What is broken about a backend is noticed", { skip: missingForNamespaces() }, () => {
  let directory: string;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-broken-"));
    server = await startTestServer({
      plugins: [[linuxNamespaces, { directory, python: PYTHON }]],
    });
    const warm = await server
      .resolve(Backends)
      .get("linux-namespaces")
      .provision(
        { id: "warm", template: "base", limits: {}, allowInternetAccess: true },
        new AbortController().signal,
      );
    await warm.destroy();
  });
  after(async () => {
    await server.stop();
    await rm(directory, { recursive: true });
  });

  for (const each of defects) {
    it(`${each.defect}: ${each.noticedBy}`, { timeout: 240_000 }, async () => {
      await expectNoticed(server.resolve(Backends).get("linux-namespaces"), each);
    });
  }
});

describe(
  "A backend that says that its sandboxes have users of their own, and has not",
  { skip: missingForNamespaces() || process.getuid?.() !== 0 },
  () => {
    it("is noticed by what one sandbox takes from another", { timeout: 240_000 }, async () => {
      const directory = await mkdtemp(join(tmpdir(), "coppice-broken-"));
      const settings = { directory, python: PYTHON, ids: { count: 0 } };
      const shared = await startTestServer({ plugins: [[linuxNamespaces, settings]] });
      try {
        await expectNoticed(shared.resolve(Backends).get("linux-namespaces"), {
          defect: "all sandboxes have the ids of the host",
          noticedBy:
            "a sandbox that takes all bytes of POSIX message queues that it can takes none of another's, or of the host's",
          says: /lacks bytes of POSIX message queues/,
        });
      } finally {
        await shared.stop();
        await rm(directory, { recursive: true });
      }
    });
  },
);

/** Operations that try the host where the sandbox has nothing: what following a link on the host does. */
function onTheHost(): readonly Defect[] {
  const noticedBy = "a directory that is swapped for a link during an operation never leads out";
  const isCanary = (path: string): boolean => posix.normalize(path).startsWith("/tmp/coppice-canary-");
  const hostInfo = async (path: string): Promise<FileInfo> => {
    const { mtimeMs, size } = await stat(posix.normalize(path));
    return {
      name: posix.basename(path),
      path,
      kind: "file",
      sizeBytes: size,
      mode: 0,
      rawMode: 0,
      uid: 0,
      gid: 0,
      owner: "",
      group: "",
      modifiedAtMs: mtimeMs,
      metadata: {},
    };
  };
  const orReal = <T>(path: string, host: () => Promise<T>, real: () => Promise<T>): Promise<T> =>
    isCanary(path) ? host().catch(real) : real();
  const operations: readonly (readonly [string, RegExp, Alterations["files"]])[] = [
    [
      "read",
      /read a file of the host/,
      (real) => ({
        read: (path) =>
          orReal(
            path,
            async (): Promise<OpenFile> => {
              const data = await readFile(posix.normalize(path));
              return {
                info: await hostInfo(path),
                content: () => only(data),
                [Symbol.asyncDispose]: () => Promise.resolve(),
              };
            },
            () => real.read(path),
          ),
      }),
    ],
    [
      "read by a descriptor",
      /read a file of the host by a descriptor/,
      (real) => {
        let secret: Buffer | undefined;
        return {
          async read(path) {
            if (isCanary(path)) secret = await readFile(posix.normalize(path)).catch(() => undefined);
            const file = await real.read(path);
            const read = async (target: Uint8Array): Promise<number> => secret?.copy(target) ?? 0;
            return {
              info: file.info,
              content: (options) => file.content(options),
              direct: async () => (await file.direct?.()) && { read },
              [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
            };
          },
        };
      },
    ],
    [
      "stat",
      /told of a file of the host/,
      (real) => ({
        stat: (path) =>
          orReal(
            path,
            () => hostInfo(path),
            () => real.stat(path),
          ),
      }),
    ],
    [
      "list",
      /told of a file of the host/,
      (real) => ({
        async *list(path, depth) {
          if (!isCanary(path)) return yield* real.list(path, depth);
          for (const name of await readdir(posix.normalize(path))) yield hostInfo(`${path}/${name}`);
        },
      }),
    ],
    [
      "write",
      /changed a|wrote a/,
      (real) => ({
        write: (path, data, options) =>
          orReal(
            path,
            async () => {
              await writeFile(posix.normalize(path), "escaped");
              return real.write(path, data, options);
            },
            () => real.write(path, data, options),
          ),
      }),
    ],
    [
      "remove",
      /ENOENT|changed a directory/,
      (real) => ({
        async remove(path) {
          const target = posix.normalize(path);
          if (isCanary(path) && dirname(target) !== "/tmp")
            await rm(target, { recursive: true, force: true });
          return real.remove(path);
        },
      }),
    ],
    [
      "watch",
      /watched a directory of the host/,
      (real) => ({
        async watch(path, options) {
          const watched = await real.watch?.(path, options);
          return (async function* (): AsyncGenerator<WatchEvent> {
            if (path.endsWith("/window")) yield { type: "create", name: "tick-1" };
            yield* watched ?? [];
          })();
        },
      }),
    ],
  ];
  return operations.map(([verb, says, files]) => ({
    defect: `${verb} leads to the host`,
    noticedBy,
    says,
    ...(files && { files }),
  }));
}

function watching(
  change: (events: AsyncIterable<WatchEvent>) => AsyncIterable<WatchEvent>,
): Pick<Defect, "files"> {
  return {
    files: (real) => ({
      async watch(path, options) {
        return change((await real.watch?.(path, options)) ?? only());
      },
    }),
  };
}

async function* only<T>(...values: readonly T[]): AsyncGenerator<T> {
  yield* values;
}

async function* withoutLast(output: AsyncIterable<Output>): AsyncGenerator<Output> {
  let held: Output | undefined;
  for await (const piece of output) {
    if (held) yield held;
    held = { ...piece, data: Uint8Array.from(piece.data) };
  }
  if (held) yield { ...held, data: held.data.subarray(0, -1) };
}

/** Reads all output at once. */
function hoarded({ output }: Process): AsyncIterable<Output> {
  const hoard = new PassThrough({ objectMode: true, highWaterMark: Number.MAX_SAFE_INTEGER });
  void (async () => {
    for await (const piece of output) hoard.write({ ...piece, data: Uint8Array.from(piece.data) });
    hoard.end();
  })();
  return hoard;
}

function secrets(): Record<string, string> {
  const secret = process.env["COPPICE_CONFORMANCE_SECRET"];
  return secret === undefined ? {} : { COPPICE_CONFORMANCE_SECRET: secret };
}
