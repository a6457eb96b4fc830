/**
 * The most that each owner may keep, so that all together keep `most`: who has less keeps everything, and the largest
 * lose first. Infinite where that is enough for all.
 */
export function fairShare(amounts: Iterable<number>, most: number): number {
  const sorted = [...amounts].toSorted((a, b) => a - b);
  let left = most;
  for (const [index, amount] of sorted.entries()) {
    const share = left / (sorted.length - index);
    if (amount > share) return share;
    left -= amount;
  }
  return Infinity;
}

/** What is to go of a list, the oldest first, so that each owner keeps its fair share. */
export function unfairlyKept<T>(
  oldestFirst: readonly T[],
  { most, ownerOf }: { readonly most: number; readonly ownerOf: (kept: T) => string },
): readonly T[] {
  const left = new Map<string, number>();
  for (const kept of oldestFirst) left.set(ownerOf(kept), (left.get(ownerOf(kept)) ?? 0) + 1);
  const share = fairShare(left.values(), most);
  return oldestFirst.filter((kept) => {
    const own = left.get(ownerOf(kept)) ?? 0;
    if (own <= share) return false;
    left.set(ownerOf(kept), own - 1);
    return true;
  });
}
