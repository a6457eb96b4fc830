/** A figure that was measured on our server and on a peer. */
export interface ComparedRow {
  readonly row: string;
  readonly unit: string;
  readonly here: number;
  readonly peer: number;
}
