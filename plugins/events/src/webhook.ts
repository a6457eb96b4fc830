/** Somebody who is told of a tenant's events. */
export interface Webhook {
  readonly id: string;
  readonly tenant: string;
  readonly name: string;
  readonly url: string;
  /** Names of the types that it is told of. */
  readonly types: readonly string[];
  /** False: nothing is delivered to it, and nothing more is kept for it. */
  readonly isEnabled: boolean;
  /** Secret that deliveries are signed with. */
  readonly secret: string;
  readonly createdAtMs: number;
}
