/** A reason why this host cannot run sandboxes, with its fix. */
export interface HostProblem {
  readonly message: string;
  readonly fix: string;
}
