import { BootError, messageOf } from "../kernel/errors.js";

/** A finding of `coppice doctor` on this host. */
export interface Finding {
  /** `warn`: a server runs with less than it could have. `fail`: it does not run, or not as configured. */
  readonly severity: "ok" | "warn" | "fail";
  /** The finding, as a sentence without a full stop. */
  readonly message: string;
  readonly fix?: string | undefined;
}

/** What a diagnosis may use. */
export interface Examination {
  /** Aborted when its answer is no longer waited for. */
  readonly signal: AbortSignal;
  readonly plugins: ReadonlySet<string>;
}

/** A plugin's diagnosis of this host. A rejection is a failure. */
export type Diagnosis = (examination: Examination) => Promise<readonly Finding[]>;

/** A finding with its source: `node`, `listener api`, or a name that a plugin gave. */
export interface NamedFinding extends Finding {
  readonly name: string;
}

const SIGN = { ok: "ok  ", warn: "warn", fail: "FAIL" } as const;

export function formatFinding({ severity, name, message, fix }: NamedFinding): string {
  const text = fix === undefined ? message : `${message} -> ${fix}`;
  return `${SIGN[severity]}  ${name}: ${text.replaceAll(/\s*\n\s*/g, "; ")}`;
}

export function failures(name: string, error: unknown): readonly NamedFinding[] {
  if (!(error instanceof BootError)) return [{ name, severity: "fail", message: messageOf(error) }];
  return error.problems.map(({ message, at }) => ({
    name,
    severity: "fail",
    message: at === undefined ? message : `${at}: ${message}`,
  }));
}
