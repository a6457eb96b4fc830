/** A row that names what its other figure is of. */
export interface NamedRow extends ComparedRow {
  readonly against: string;
}

/** A figure that was measured on our server, and another one of a peer or of the same run. */
export interface ComparedRow {
  readonly row: string;
  readonly unit: string;
  readonly here: number;
  readonly peer: number;
}
