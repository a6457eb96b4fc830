import { type Clock, type Logger, messageOf, SandboxError, type Sandboxes } from "@coppice/core";
import type { Membership } from "../membership/membership.js";
import { unavailable } from "../reasons.js";
import { StoreUnavailable, UnknownOutcome, untilCommitted, type FleetStore } from "../store/fleet-store.js";
import { countedOf, SANDBOXES, sandboxOf, sandboxText } from "./fleet-sandbox.js";

interface MovedSandboxesOptions {
  readonly store: FleetStore;
  readonly membership: Pick<Membership, "check">;
  readonly sandboxes: Pick<Sandboxes, "find" | "kill">;
  /** How long the record of a moved sandbox is kept whose server fails before it ends it. */
  readonly keptMs: number;
  readonly clock: Clock;
  readonly log: Pick<Logger, "warn">;
}

/** Time that the old server has to take notice of the new sandbox. */
const CLAIM_MS = 10_000;

/**
 * Decides which of two sandboxes stays, the moved one or the one that takes its place, when either server fails in the
 * middle: an answer that was written may never be read. Each server gives up its own only while the record of the other
 * one is there, in one commit. So never both go, and never both stay.
 */
export class MovedSandboxes implements Disposable {
  readonly #options: MovedSandboxesOptions;
  /** Cancels of those that wait, by the new sandbox. */
  readonly #waiting = new Map<string, () => void>();

  constructor(options: MovedSandboxesOptions) {
    this.#options = options;
  }

  /** Gives up a sandbox of this server for a new one. @throws SandboxError fleet_unavailable when that has been given up. */
  async cede(id: string, successor: string): Promise<void> {
    const { store, membership, clock, keptMs } = this.#options;
    const attempt = async (): Promise<boolean> => {
      const [old, made] = await Promise.all([store.get(SANDBOXES + id), store.get(SANDBOXES + successor)]);
      const known = old && sandboxOf(old);
      // The first attempt did it, and its answer was lost.
      if (known?.isMoved === true) return true;
      if (made === undefined || sandboxOf(made)?.lostAtMs !== undefined)
        throw unavailable("the other server has given the new sandbox up");
      if (old === undefined || known === undefined || known.lostAtMs !== undefined)
        throw unavailable("this server has lost the sandbox meanwhile");
      const lease = await store.grant(keptMs);
      const checks = [
        membership.check,
        { key: old.key, modRevision: old.modRevision },
        { key: made.key, modRevision: made.modRevision },
      ];
      // Lost for this server, too, if it fails before it ends the sandbox.
      const value = sandboxText({ ...known, lostAtMs: clock.now(), isMoved: true });
      const changes = [{ put: old.key, value, lease }, { delete: countedOf(known.tenant) + id }];
      if ((await store.commit(checks, changes)) !== undefined) return true;
      await store.revoke(lease);
      return false;
    };
    await untilCommitted(() =>
      attempt().catch((error: unknown) => {
        if (error instanceof UnknownOutcome || error instanceof StoreUnavailable) return false;
        throw error;
      }),
    );
  }

  /** Gives up a new sandbox of this server later, unless the old one has been given up by then. */
  await(id: string, predecessor: string): void {
    const { clock, log } = this.#options;
    this.#waiting.get(id)?.();
    const decide = async (): Promise<void> => {
      this.#waiting.delete(id);
      try {
        await this.#decide(id, predecessor);
      } catch (error) {
        log.warn({ sandbox: id, reason: messageOf(error) }, "whether a moved sandbox stays is not known yet");
        this.await(id, predecessor);
      }
    };
    this.#waiting.set(
      id,
      clock.after(CLAIM_MS, () => void decide()),
    );
  }

  [Symbol.dispose](): void {
    for (const cancel of this.#waiting.values()) cancel();
    this.#waiting.clear();
  }

  async #decide(id: string, predecessor: string): Promise<void> {
    const { store, membership, sandboxes, log } = this.#options;
    let isGivenUp = false;
    await untilCommitted(async () => {
      const found = sandboxes.find(id);
      const old = await store.get(SANDBOXES + predecessor);
      const known = old && sandboxOf(old);
      isGivenUp = false;
      if (found === undefined || old === undefined || known?.lostAtMs !== undefined) return true;
      // The id is from metadata, which clients can set.
      if (known?.tenant !== found.record.owner) return true;
      isGivenUp = true;
      const checks = [membership.check, { key: old.key, modRevision: old.modRevision }];
      const changes = [{ delete: SANDBOXES + id }, { delete: countedOf(found.record.owner) + id }];
      return (await store.commit(checks, changes)) !== undefined;
    });
    if (!isGivenUp) return;
    log.warn({ sandbox: id, predecessor }, "a moved sandbox is ended: the old one goes on");
    await sandboxes.kill(id).catch((error: unknown) => {
      if (!(error instanceof SandboxError && error.code === "not_found")) throw error;
    });
  }
}
