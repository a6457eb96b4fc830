import { type Slot, createToken } from "../../kernel/token.js";

/** A small record of a tenant; its kind says what the text means. */
interface TenantRecord {
  readonly id: string;
  readonly text: string;
}

/** Learns of the records of all tenants. */
interface RecordFollower {
  /** Called first, with all that there are. */
  began(all: readonly TenantRecord[]): void;
  /** @param text undefined for a record that was removed */
  changed(id: string, text: string | undefined): void;
}

/** The records of one kind that several servers have in common. */
interface CommonRecords {
  /** Those that a tenant has now, by id. @throws SandboxError while that cannot be told. */
  list(tenant: string): Promise<readonly TenantRecord[]>;
  /**
   * Puts a record, or removes it, and resolves when the follower of this server knows.
   * @param decide returns the text, undefined to remove it, or throws to refuse; called again when another server has
   * changed something of the tenant meanwhile. @throws SandboxError, or what `decide` throws; nothing has changed then,
   * unless the error says that this is not known.
   */
  change(
    tenant: string,
    id: string,
    decide: (all: readonly TenantRecord[]) => string | undefined,
  ): Promise<void>;
  stop(): Promise<void>;
}

/** Opens the records of a kind. @throws SandboxError */
export type RecordSource = (kind: string, follower: RecordFollower) => Promise<CommonRecords>;

/** The source of small records that several servers have in common: none on a server of its own. Use it from the start on. */
export type TenantRecords = Slot<RecordSource>;

export const TenantRecords = createToken<TenantRecords>("tenant-records");

/**
 * Tenant of sandboxes without one: those of the server itself, of a server without authentication, and from before
 * tenants.
 */
export const DEFAULT_TENANT = "default";
