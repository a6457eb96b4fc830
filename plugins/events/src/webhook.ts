/** A receiver of a tenant's events. */
export interface Webhook {
  readonly id: string;
  readonly tenant: string;
  readonly name: string;
  readonly url: string;
  /** Names of the event types that it receives. */
  readonly types: readonly string[];
  /** False: nothing is delivered to it, and no new deliveries are queued. */
  readonly isEnabled: boolean;
  readonly secret: string;
  readonly createdAtMs: number;
}
