import { currentOwner, runAs } from "./owner.js";

/** Who sends bytes, however many connections it has: the address of a client, or what stands for a sandbox. */
export type Sender = object | string;

/** Time that peers' bytes may take of one turn of the event loop. */
const TURN_MS = 2;

/** What waits for a later turn, by sender. The first sender is next, and is the last one then. */
const waiting = new Map<Sender, (() => void)[]>();
let isScheduled = false;
let endsAtMs: number | undefined;

/**
 * True when the bytes of peers have taken their share of this turn of the event loop: who handles more of them does it
 * by `inLaterTurn`. Cheap, but not free: loops ask once in some dozens of small pieces.
 */
export function isTurnOver(): boolean {
  const nowMs = performance.now();
  if (endsAtMs === undefined) {
    endsAtMs = nowMs + TURN_MS;
    setImmediate(endTurn);
  }
  return nowMs >= endsAtMs;
}

/**
 * Calls back in a later turn of the event loop, one in each: senders have their turns one after the other, however much
 * one of them has waiting. Each connection or stream waits once at a time, so that their limits are those of what waits.
 */
export function inLaterTurn(sender: Sender, act: () => void): void {
  // One callback runs what several plugins have asked for, each of which goes on as itself.
  const owner = currentOwner();
  const own = waiting.get(sender);
  const next = (): void => runAs(owner, act);
  if (own === undefined) waiting.set(sender, [next]);
  else own.push(next);
  schedule();
}

/** Resolves as `inLaterTurn` calls back. */
export function laterTurn(sender: Sender): Promise<void> {
  return new Promise((resolve) => inLaterTurn(sender, resolve));
}

function endTurn(): void {
  endsAtMs = undefined;
}

/** Between two the loop looks at its sockets: who sends little is served at once. */
function schedule(): void {
  if (isScheduled || waiting.size === 0) return;
  isScheduled = true;
  setImmediate(run);
}

function run(): void {
  isScheduled = false;
  for (const [sender, acts] of waiting) {
    const act = acts.shift();
    waiting.delete(sender);
    if (acts.length > 0) waiting.set(sender, acts);
    schedule();
    act?.();
    return;
  }
}
