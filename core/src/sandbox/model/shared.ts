import { type Slot, createToken } from "../../kernel/token.js";
import type { SandboxId } from "../contract/backend.js";
import type { CountedSandbox } from "./admissions.js";
import type { SandboxRecord } from "./live-sandbox.js";
import { SandboxError } from "../../kernel/errors.js";
import type { SnapshotRecord } from "./snapshots.js";

export interface Reservation {
  /**
   * Refuses by throwing when the owner may not have the sandbox beside its others, on all servers; may be called several
   * times. Undefined when nothing of the owner is counted.
   */
  readonly admit: ((others: readonly CountedSandbox[]) => void) | undefined;
  readonly signal: AbortSignal;
}

/** The record that several servers have of their sandboxes. */
export interface SharedRecord {
  /** Adds a sandbox before it is made. @throws SandboxError, or what `admit` throws; nothing is recorded then. */
  add(sandbox: SandboxRecord, reservation: Reservation): Promise<void>;
  /** Gives a recorded sandbox its new limits before it gets them. @throws as `add`; the old limits are recorded then. */
  raise(sandbox: SandboxRecord, reservation: Reservation): Promise<void>;
  /** Records lower limits. Never rejects, and resolves soon. */
  lower(sandbox: SandboxRecord): Promise<void>;
  /** Removes a sandbox that ends. Never rejects, and resolves soon; for an unknown one at once. */
  remove(id: SandboxId): Promise<void>;
}

/** The record for several servers, where a plugin has one. */
export type SharedRecords = Slot<SharedRecord>;

export const SharedRecords = createToken<SharedRecords>("shared-records");

/** What one of several servers tells all of a template that it keeps. */
interface SharedTemplate {
  /** As its server wrote it; undefined once that one has removed the template, for as long as this is remembered. */
  readonly value: string | undefined;
  /** Of its last change; greater than that of earlier ones. */
  readonly revision: number;
  /** `gone`: the server that kept it is none of them any more, and another one may keep it. */
  readonly keeper: "self" | "other" | "gone";
}

/** The templates of several servers, by id. */
interface TemplateRecords {
  /** As this server knows them: late, perhaps. */
  entries(): Iterable<readonly [id: string, template: SharedTemplate]>;
  get(id: string): SharedTemplate | undefined;
  /** As they are. @throws SandboxError when the servers' store cannot be reached */
  read(id: string): Promise<SharedTemplate | undefined>;
  /**
   * Tells of a template that this server keeps from now on; undefined once it is removed.
   * @param known that is replaced. @throws SandboxError, when another server keeps it or has changed it, too
   */
  put(id: string, value: string | undefined, known: SharedTemplate | undefined): Promise<void>;
}

/** Lets the other servers make sandboxes of a snapshot, until it is disposed of. @throws SandboxError, the signal's reason */
type SnapshotLoan = (snapshot: SnapshotRecord, signal: AbortSignal) => Promise<AsyncDisposable>;

/** Templates of several servers, where a plugin has such. */
export interface SharedTemplates {
  /** Sets the records, once, when they can be read. */
  use(records: TemplateRecords): void;
  /** Undefined for a server that is alone, or has not read them yet. */
  readonly records: TemplateRecords | undefined;
  /** Sets how snapshots are lent, once. */
  useLoan(loan: SnapshotLoan): void;
  readonly lend: SnapshotLoan;
}

export const SharedTemplates = createToken<SharedTemplates>("shared-templates");

export class UsedSharedTemplates implements SharedTemplates {
  #records: TemplateRecords | undefined;
  #loan: SnapshotLoan | undefined;

  use(records: TemplateRecords): void {
    if (this.#records !== undefined) throw new Error("another plugin has the templates of several servers");
    this.#records = records;
  }

  useLoan(loan: SnapshotLoan): void {
    if (this.#loan !== undefined) throw new Error("another plugin lends the snapshots of this server");
    this.#loan = loan;
  }

  async lend(snapshot: SnapshotRecord, signal: AbortSignal): Promise<AsyncDisposable> {
    if (this.#loan !== undefined) return this.#loan(snapshot, signal);
    throw new SandboxError(
      "template_push_unsupported",
      "its server has no registry for its files (templates.sharing)",
    );
  }

  get records(): TemplateRecords | undefined {
    return this.#records;
  }
}
