import { setTimeout as sleep } from "node:timers/promises";
import {
  type Clock,
  createdLike,
  type CreateSandbox,
  type LiveSandbox,
  type Logger,
  messageOf,
  SandboxError,
  type Sandboxes,
  type SharedTemplates,
  type Snapshots,
} from "@coppice/core";
import { z } from "zod";
import type { FleetPlacement } from "./fleet-placement.js";
import type { MovedSandboxes } from "../records/moved-sandboxes.js";
import { unavailable } from "../reasons.js";

/** A sandbox for another server, as this one asks for it. */
export const arrival = z.object({
  request: z
    .looseObject({ template: z.string(), owner: z.string() })
    .transform((request) => request as unknown as CreateSandbox),
  /** Of its life; absent for one without an end, and for a paused one. */
  leftMs: z.number().optional(),
  isPaused: z.boolean(),
});

export const moveAnswer = z.union([
  z.object({ id: z.string(), server: z.string() }),
  z.object({ refusal: z.string() }),
]);
export type Moved = z.infer<typeof moveAnswer>;

/** Metadata of a sandbox with the id of the one whose files it has. */
const MOVED_FROM = "coppice.movedFrom";

export interface MovesOptions {
  readonly sandboxes: Pick<
    Sandboxes,
    "create" | "get" | "find" | "list" | "pause" | "resume" | "kill" | "setTimeout"
  >;
  readonly snapshots: Snapshots;
  readonly templates: Pick<SharedTemplates, "lend">;
  readonly placement: Pick<FleetPlacement, "elsewhere">;
  /** Decide between the old sandbox and the new one when a server fails. */
  readonly moved: Pick<MovedSandboxes, "cede" | "await">;
  readonly ask: (server: string, path: string, question: unknown, signal: AbortSignal) => Promise<unknown>;
  readonly clock: Clock;
  readonly log: Pick<Logger, "info" | "warn">;
}

/** Until the others' watches have told them of the snapshot. */
const PATIENCE_MS = 5000;
const PAUSE_MS = 200;
/** A sandbox that was made in vain has to be ended although its request was given up. */
const UNDO_MS = 10_000;

/** Moves sandboxes to other servers: their files go on in new ones. */
export class Moves {
  readonly #options: MovesOptions;
  readonly #moving = new Map<string, Promise<Moved>>();

  constructor(options: MovesOptions) {
    this.#options = options;
  }

  /**
   * Makes a sandbox with the files and the options of one of this server at another one, and ends it here. When it fails the
   * sandbox goes on here as before. Who asks while it is being moved gets the same answer: the pause of a move must not be
   * taken for the owner's.
   */
  async move(id: string, signal: AbortSignal): Promise<Moved> {
    const moving = this.#moving.get(id) ?? this.#attempt(id, signal).finally(() => this.#moving.delete(id));
    this.#moving.set(id, moving);
    return moving;
  }

  async #attempt(id: string, signal: AbortSignal): Promise<Moved> {
    try {
      const moved = await this.#move(id, signal);
      this.#options.log.info({ sandbox: id, as: moved.id, node: moved.server }, "a sandbox was moved");
      return moved;
    } catch (error) {
      this.#options.log.warn({ sandbox: id, err: error }, "a sandbox was not moved");
      return { refusal: messageOf(error) };
    }
  }

  /** Makes a sandbox that another server gives up. @throws SandboxError */
  async arrive({ request, leftMs, isPaused }: z.infer<typeof arrival>, signal: AbortSignal) {
    const { sandboxes, moved } = this.#options;
    const sandbox = await sandboxes.create(request, signal);
    const { id } = sandbox.record;
    try {
      if (leftMs !== undefined) await sandboxes.setTimeout(id, leftMs);
      if (isPaused) await sandboxes.pause(id, { keepsMemory: false });
    } catch (error) {
      await sandboxes.kill(id);
      throw error;
    }
    awaitClaim(sandbox, moved);
    return sandbox;
  }

  /** Goes on waiting for the old servers of sandboxes that came here before this server was started. */
  awaitClaims(): void {
    const { sandboxes, moved } = this.#options;
    for (const sandbox of sandboxes.list()) awaitClaim(sandbox, moved);
  }

  async #move(id: string, signal: AbortSignal): Promise<{ readonly id: string; readonly server: string }> {
    const { sandboxes, snapshots, templates, ask, clock, moved } = this.#options;
    const { record } = sandboxes.get(id);
    const { owner, state, mounts, endsAtMs } = record;
    if (mounts.length > 0)
      throw new SandboxError("sandbox_state_conflict", "it has volumes, which are of this server");
    const wasRunning = state === "running";
    const leftMs = wasRunning && endsAtMs !== undefined ? endsAtMs - clock.now() : undefined;
    // What a program writes after the snapshot would be lost.
    if (wasRunning) await sandboxes.pause(id);
    // Each change of a sandbox makes another record.
    const { record: paused } = sandboxes.get(id);
    try {
      const made = await snapshots.of(owner).lend(id, async (snapshot) => {
        await using _lent = await templates.lend(snapshot, signal);
        const metadata = { ...record.metadata, [MOVED_FROM]: id };
        const request = { ...createdLike(record), template: snapshot.id, metadata };
        return await this.#createElsewhere({ request, leftMs, isPaused: !wasRunning }, signal);
      });
      if (sandboxes.find(id)?.record !== paused) {
        await ask(made.server, "/ends", { id: made.id }, AbortSignal.timeout(UNDO_MS));
        throw new SandboxError(
          "sandbox_state_conflict",
          "it was resumed, changed or ended while it was being moved",
        );
      }
      await moved.cede(id, made.id);
      await sandboxes.kill(id, "moved");
      return made;
    } catch (error) {
      if (wasRunning && sandboxes.find(id)?.record === paused) await sandboxes.resume(id, leftMs);
      throw error;
    }
  }

  async #createElsewhere(wanted: z.infer<typeof arrival>, signal: AbortSignal) {
    const { placement, ask, clock } = this.#options;
    const untilMs = clock.now() + PATIENCE_MS;
    for (;;) {
      const server = await placement.elsewhere(wanted.request, signal);
      if (server !== undefined) {
        const answer = moveAnswer.parse(await ask(server, "/arrivals", wanted, signal));
        if ("id" in answer) return answer;
        throw unavailable(`server '${server}' refuses it: ${answer.refusal}`);
      }
      if (clock.now() > untilMs) throw unavailable("no other server can have it: by room, backend or quota");
      await sleep(PAUSE_MS, undefined, { signal });
    }
  }
}

function awaitClaim({ record }: LiveSandbox, moved: MovesOptions["moved"]): void {
  const predecessor = record.metadata[MOVED_FROM];
  if (predecessor !== undefined) moved.await(record.id, predecessor);
}
