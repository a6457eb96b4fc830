/** What keeps this host from running sandboxes, and how to mend it. */
export interface HostProblem {
  readonly message: string;
  readonly fix: string;
}
