/** A route that takes a body, and bodies of the right syntax with the wrong contents. */
export interface BodyRoute {
  readonly path: string;
  readonly wrong: readonly unknown[];
  /** `{}` and no body at all are fine here. */
  readonly mayBeEmpty?: boolean;
}

export const API_BODIES: readonly BodyRoute[] = [
  ...["/sandboxes", "/v2/sandboxes"].map((path) => ({
    path,
    wrong: [
      {},
      { templateID: 7 },
      { templateID: "base", timeout: "soon" },
      { templateID: "base", timeout: 1.5 },
      { templateID: "base", timeout: 1e300 },
      { templateID: "base", timeout: 0 },
      { templateID: "base", timeout: -1 },
      { templateID: "base", metadata: { a: 1 } },
      { templateID: "base", metadata: ["a"] },
      { templateID: "base", envVars: { "A=B": "x" } },
      { templateID: "base", envVars: { A: "nul\0" } },
      { templateID: "base", secure: "yes" },
    ],
  })),
  { path: "/sandboxes/ID/connect", wrong: [{ timeout: "x" }, { timeout: {} }] },
  { path: "/v2/sandboxes/ID/connect", wrong: [{ timeout: "x" }, { timeout: [] }], mayBeEmpty: true },
  { path: "/sandboxes/ID/timeout", wrong: [{}, { timeout: "x" }, { timeout: null }, { timeout: 1e12 }] },
  { path: "/sandboxes/ID/refreshes", wrong: [{ duration: "x" }, { duration: [] }], mayBeEmpty: true },
];

export const NDJSON_BODIES: readonly BodyRoute[] = [
  {
    path: "/commands",
    wrong: [
      {},
      { cmd: "" },
      { cmd: 1 },
      { cmd: "true", args: "x" },
      { cmd: "true", env: { A: 1 } },
      { cmd: "true", timeout_ms: -1 },
      { cmd: "true", timeout_ms: "1" },
      { cmd: "true", cwd: "/does/not/exist" },
      { cmd: "nul\0" },
    ],
  },
];

export const UNARY: Readonly<Record<string, readonly unknown[]>> = {
  "/process.Process/List": [],
  "/process.Process/Update": [{}, { process: { pid: 1 } }, { process: { pid: "x" } }],
  "/process.Process/SendInput": [
    {},
    { process: { pid: 4_000_000 } },
    { process: { pid: 4_000_000 }, input: { stdin: "not base64!" } },
    { process: { tag: "nobody" }, input: { stdin: "" } },
  ],
  "/process.Process/SendSignal": [
    {},
    { process: { pid: 4_000_000 }, signal: "SIGNAL_SIGKILL" },
    { process: { pid: -1 }, signal: 9 },
    { process: { pid: 1 }, signal: "SIGNAL_NONSENSE" },
  ],
  "/process.Process/CloseStdin": [{}, { process: { pid: 4_000_000 } }],
  "/filesystem.Filesystem/Stat": [
    { path: 1 },
    { path: "/does/not/exist" },
    { path: "nul\0byte" },
    { path: "~other/x" },
  ],
  "/filesystem.Filesystem/MakeDir": [
    { path: {} },
    { path: "plain.txt" },
    { path: "plain.txt/below" },
    { path: "nul\0" },
  ],
  "/filesystem.Filesystem/Move": [
    { source: [] },
    { source: "/does/not/exist", destination: "x" },
    { source: "nul\0" },
  ],
  "/filesystem.Filesystem/ListDir": [
    { path: "/does/not/exist" },
    { path: "plain.txt" },
    { depth: -1 },
    { depth: "x" },
  ],
  "/filesystem.Filesystem/Remove": [{ path: 1 }, { path: "nul\0" }],
  "/filesystem.Filesystem/CreateWatcher": [
    { path: "/does/not/exist" },
    { path: "plain.txt" },
    { recursive: "x" },
  ],
  "/filesystem.Filesystem/GetWatcherEvents": [{}, { watcherId: "wnobody" }, { watcherId: 1 }],
  "/filesystem.Filesystem/RemoveWatcher": [{ watcherId: 1 }],
};

export const STREAMS: Readonly<Record<string, readonly unknown[]>> = {
  "/process.Process/Start": [
    { process: 1 },
    { process: { cmd: 1 } },
    { process: { cmd: "/bin/true", args: "x" } },
    { process: { cmd: "/bin/true", cwd: "/does/not/exist" } },
    { process: { cmd: "nul\0" } },
    { process: { cmd: "/bin/true", envs: { A: "nul\0" } } },
    { process: { cmd: "/bin/true" }, pty: { size: { cols: -1 } } },
  ],
  "/process.Process/Connect": [
    {},
    { process: { pid: 4_000_000 } },
    { process: { tag: "nobody" } },
    { process: { pid: "x" } },
  ],
  "/filesystem.Filesystem/WatchDir": [
    { path: "/does/not/exist" },
    { path: "plain.txt" },
    { path: 1 },
    { path: "nul\0" },
  ],
};

export const CODE_BODIES: readonly BodyRoute[] = [
  {
    path: "/execute",
    wrong: [
      {},
      { code: 1 },
      { code: "1", language: 7 },
      { code: "1", env_vars: { A: 1 } },
      { code: "1", env_vars: "x" },
    ],
  },
  { path: "/contexts", wrong: [{ language: 7 }, { cwd: [] }] },
];

/** Syntax that no route takes. */
export const UNREADABLE: readonly (readonly [what: string, body: Buffer])[] = [
  ["half an object", Buffer.from('{"templateID":')],
  ["a list", Buffer.from("[]")],
  ["a number", Buffer.from("42")],
  ["null", Buffer.from("null")],
  ["bytes that are no text", Buffer.from([0xff, 0xfe, 0x00, 0x80])],
  ["brackets without end", Buffer.from("[".repeat(50_000))],
];
