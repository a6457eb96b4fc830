import { type Command, SandboxError } from "@coppice/core/backend";
import { PAYLOAD_LIMIT, PayloadWriter, Stage } from "./frames.js";
import type { Failure } from "./answers.js";

/** An acting account or owner, by numbers. */
export interface Identity {
  readonly uid: number;
  readonly gid: number;
  readonly groups?: readonly number[] | undefined;
}

/** @param identity a name of the sandbox's passwd, numbers, or undefined for the agent's own account. */
export function writeIdentity(payload: PayloadWriter, identity: string | Identity | undefined): void {
  if (identity === undefined) {
    payload.u8(0);
  } else if (typeof identity === "string") {
    payload.u8(1).text(identity);
  } else {
    const { uid, gid, groups = [] } = identity;
    payload.u8(2).u32(uid).u32(gid).u16(groups.length);
    for (const group of groups) payload.u32(group);
  }
}

/** Resources of setrlimit(2), in the order of the protocol. */
const RESOURCES = [
  "openFiles",
  "processes",
  "addressSpaceBytes",
  "cpuSeconds",
  "fileSizeBytes",
  "coreSizeBytes",
  "stackBytes",
  "dataBytes",
] as const;

export type ResourceName = (typeof RESOURCES)[number];

/** A program to start, with additions that only backends use. */
export interface SpawnRequest extends Omit<Command, "user"> {
  /** A name of the sandbox's passwd, or numbers; the agent's own account when absent. */
  readonly user?: string | Identity | undefined;
  readonly limits?: Readonly<Partial<Record<ResourceName, number>>> | undefined;
  readonly umask?: number | undefined;
  /** Up to 4 095 bytes that the agent keeps: a later server reads them as `Process.label`. */
  readonly label?: string | undefined;
}

const INPUT = 1;
const TERMINAL = 2;
const KEEPS_OUTPUT = 4;
const DEFAULT_UMASK = 0xffff;
const MAX_ARGUMENTS = 32_768;
const MAX_VARIABLES = 8_192;
/** A lack of processes, memory or descriptors. */
const EXHAUSTED: ReadonlySet<string> = new Set(["EAGAIN", "EMFILE", "ENFILE", "ENOMEM"]);

/** @throws SandboxError invalid_argument for a NUL byte and for values that are too long. */
export function writeSpawnRequest(request: SpawnRequest, creditBytes: number): Buffer {
  const words = [request.path, ...request.args];
  const variables = Object.entries(request.env).map(([name, value]) => `${name}=${value}`);
  if ([...words, ...variables, request.cwd ?? ""].some((text) => text.includes("\0")))
    throw new SandboxError("command_invalid", "a command cannot contain a NUL byte");
  if (words.length > MAX_ARGUMENTS || variables.length > MAX_VARIABLES) throw tooLong();
  const { terminal, cwd = "", label = "", limits = {} } = request;
  if (cwd !== "" && !cwd.startsWith("/"))
    throw new SandboxError("command_invalid", `cwd '${cwd}' is not an absolute path`);
  if (Buffer.byteLength(cwd) > 4_095) throw missingDirectory(cwd);
  const keeps = request.keepsOutput === true ? KEEPS_OUTPUT : 0;
  const flags = (request.input === "none" ? 0 : INPUT) | (terminal ? TERMINAL : 0) | keeps;
  const payload = new PayloadWriter().u8(flags).u16(cells(terminal?.columns)).u16(cells(terminal?.rows));
  payload.u32(creditBytes).u16(request.umask ?? DEFAULT_UMASK);
  writeIdentity(payload, request.user);
  payload.text(cwd).text(label);
  const limited = RESOURCES.flatMap((name, index) => {
    const limit = limits[name];
    return limit === undefined ? [] : [{ index, limit: BigInt(limit) }];
  });
  payload.u8(limited.length);
  for (const { index, limit } of limited) payload.u8(index).u64(limit).u64(limit);
  for (const texts of [words, variables]) {
    payload.u16(texts.length);
    for (const text of texts) payload.text(text, 4);
  }
  if (payload.byteLength > PAYLOAD_LIMIT) throw tooLong();
  return payload.finish();
}

/** Clamps a dimension to what a terminal can have. */
export function cells(count = 0): number {
  return Math.min(Math.max(Math.trunc(count) || 0, 0), 65_535);
}

export function spawnError(failure: Failure, request: SpawnRequest): SandboxError {
  const { stage, code, detail } = failure;
  const options = { cause: failure };
  switch (stage) {
    case Stage.User:
      return new SandboxError("user_unknown", `invalid username: '${nameOf(request.user)}'`, options);
    case Stage.Directory: {
      const cwd = request.cwd ?? detail;
      if (code === "ENOENT" || code === "ENOTDIR") return missingDirectory(cwd, failure);
      return new SandboxError("spawn_not_permitted", `cannot enter cwd '${cwd}': ${code}`, options);
    }
    case Stage.Terminal:
      return new SandboxError("terminal_unavailable", `no terminal is available: ${code}`, options);
    case Stage.Limits:
      return new SandboxError("spawn_not_permitted", `cannot set the limits of a process: ${code}`, options);
    case Stage.Entry:
      return new SandboxError(
        "sandbox_not_enterable",
        `the sandbox could not be entered: ${detail || code}`,
        options,
      );
    case Stage.Credentials:
      return new SandboxError("spawn_not_permitted", `cannot become the user of a process: ${code}`, options);
    default: {
      if (stage === Stage.Execute && code === "E2BIG") return tooLong(failure);
      const reason = EXHAUSTED.has(code) ? "host_resources_exhausted" : "internal_error";
      return new SandboxError(reason, `cannot start another process: ${code}`, options);
    }
  }
}

function nameOf(user: string | Identity | undefined): string {
  return typeof user === "object" ? String(user.uid) : (user ?? "");
}

function missingDirectory(cwd: string, cause?: Failure): SandboxError {
  return new SandboxError("cwd_not_found", `cwd '${cwd}' does not exist`, { cause });
}

function tooLong(cause?: Failure): SandboxError {
  return new SandboxError("command_invalid", "argument list too long", { cause });
}
