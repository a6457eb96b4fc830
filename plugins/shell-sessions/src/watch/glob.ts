/**
 * True when a pattern with `*`, `?` and `**` is that of the path, or of a directory above it. Takes time in proportion to
 * both lengths at most: patterns come from clients, names from sandboxes, and regular expressions would need far more.
 */
export function isInGlob(path: string, pattern: string): boolean {
  const names = path.split("/");
  const wanted = [...pattern.split("/").filter((part) => part !== ""), ANY_NAMES];
  return isMatched(names, wanted, { wild: ANY_NAMES, isOne: isNameInGlob });
}

/** As `isInGlob`, for one name. */
export function isNameInGlob(name: string, pattern: string): boolean {
  return isMatched(name, pattern, { wild: "*", isOne: (char, wanted) => wanted === "?" || wanted === char });
}

const ANY_NAMES = "**";

interface Items {
  /** Stands for any number of items. */
  readonly wild: string;
  readonly isOne: (item: string, wanted: string) => boolean;
}

function isMatched(
  items: string | readonly string[],
  pattern: string | readonly string[],
  { wild, isOne }: Items,
): boolean {
  let at = 0;
  let next = 0;
  // Only the last wildcard is tried again: an earlier one that took more would leave less for it.
  let retry: { readonly next: number; at: number } | undefined;
  while (at < items.length) {
    const wanted = pattern[next];
    if (wanted === wild) {
      next++;
      retry = { next, at };
    } else if (wanted !== undefined && isOne(items[at] ?? "", wanted)) {
      at++;
      next++;
    } else if (retry !== undefined) {
      retry.at++;
      ({ at, next } = retry);
    } else return false;
  }
  while (pattern[next] === wild) next++;
  return next === pattern.length;
}
