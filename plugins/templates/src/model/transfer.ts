/** How far a transfer has come, in bytes. */
export interface Transfer {
  readonly phase: "packing" | "pulling" | "pushing";
  readonly done: number;
  /** Undefined = unknown. */
  readonly total: number | undefined;
}

/** Takes reports while a transfer goes on. */
export type TransferReport = (transfer: Transfer) => void;
