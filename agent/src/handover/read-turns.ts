/** Of all sandboxes. The rest of the server needs threads of Node's pool, too, which has four. */
const MOST_READS = 2;
/** A read that takes longer is held up, by the disk or by a program inside. */
const PATIENCE_MS = 100;

interface Turn {
  readonly owner: object;
  readonly beganMs: number;
}

const underWay = new Set<Turn>();
const waiting = new Set<{
  readonly owner: object;
  readonly settle: (end: (() => void) | undefined) => void;
}>();

/**
 * Waits for a turn to read a file in a thread of the pool, one at a time for each owner. A program inside can hold up a
 * read of its file, and that thread, for a minute: it need only free a range of a million pieces.
 * @returns the function that ends the turn; undefined when the reads before it take too long.
 */
export function takeTurn(owner: object): Promise<(() => void) | undefined> {
  if (mayRead(owner)) return Promise.resolve(begin(owner));
  if (isHeldUp(owner)) return Promise.resolve(undefined);
  return new Promise((resolve) => {
    const waiter = {
      owner,
      settle(end: (() => void) | undefined) {
        clearTimeout(timer);
        waiting.delete(waiter);
        resolve(end);
      },
    };
    const timer = setTimeout(() => waiter.settle(undefined), PATIENCE_MS);
    waiting.add(waiter);
  });
}

function begin(owner: object): () => void {
  const turn = { owner, beganMs: performance.now() };
  underWay.add(turn);
  return () => {
    underWay.delete(turn);
    for (const waiter of waiting) if (mayRead(waiter.owner)) waiter.settle(begin(waiter.owner));
  };
}

function mayRead(owner: object): boolean {
  return underWay.size < MOST_READS && turnOf(owner) === undefined;
}

function isHeldUp(owner: object): boolean {
  const own = turnOf(owner);
  const turns = own === undefined ? [...underWay] : [own];
  return turns.every(({ beganMs }) => performance.now() - beganMs > PATIENCE_MS);
}

function turnOf(owner: object): Turn | undefined {
  for (const turn of underWay) if (turn.owner === owner) return turn;
  return undefined;
}
