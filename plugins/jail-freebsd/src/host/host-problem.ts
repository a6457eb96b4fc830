/** A reason why this host cannot run sandboxes, or with `warn` not for every client, with its fix. */
export interface HostProblem {
  readonly severity?: "warn";
  readonly message: string;
  readonly fix: string;
}
