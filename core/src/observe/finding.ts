import { BootError, messageOf } from "../kernel/errors.js";

/** One thing that `coppice doctor` found on this host. */
export interface Finding {
  /** `warn`: a server runs, without something that it could have. `fail`: it does not run, or not as configured. */
  readonly severity: "ok" | "warn" | "fail";
  /** The finding, as a sentence without a full stop. */
  readonly message: string;
  /** The remedy. */
  readonly fix?: string | undefined;
}

/** Input of a plugin's diagnosis of the host. */
export interface Examination {
  /** Aborted when its answer is not waited for any more. */
  readonly signal: AbortSignal;
  /** Names of all plugins that the configuration switches on. */
  readonly plugins: ReadonlySet<string>;
}

/** Looks at this host for a plugin. What it rejects with is a failure. */
export type Diagnosis = (examination: Examination) => Promise<readonly Finding[]>;

/** A finding, and whose it is: `node`, `listener api`, or the name that a plugin gave. */
export interface NamedFinding extends Finding {
  readonly name: string;
}

const SIGN = { ok: "ok  ", warn: "warn", fail: "FAIL" } as const;

/** One line. */
export function formatFinding({ severity, name, message, fix }: NamedFinding): string {
  const text = fix === undefined ? message : `${message} -> ${fix}`;
  return `${SIGN[severity]}  ${name}: ${text.replaceAll(/\s*\n\s*/g, "; ")}`;
}

/** Turns an error into a failure for each problem in it. */
export function failures(name: string, error: unknown): readonly NamedFinding[] {
  if (!(error instanceof BootError)) return [{ name, severity: "fail", message: messageOf(error) }];
  return error.problems.map(({ message, at }) => ({
    name,
    severity: "fail",
    message: at === undefined ? message : `${at}: ${message}`,
  }));
}
