/** Suggests for an unknown word the nearest known one that differs in a third of its letters at most. */
export function didYouMean(word: string, known: Iterable<string>): string {
  let best = "";
  let least = Math.ceil(word.length / 3) + 1;
  for (const candidate of known) {
    const edits = levenshteinDistance(word.toLowerCase(), candidate.toLowerCase());
    if (edits >= least) continue;
    least = edits;
    best = candidate;
  }
  return best === "" ? "" : `; did you mean '${best}'?`;
}

function levenshteinDistance(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, index) => index);
  for (let index = 0; index < one.length; index += 1) {
    const next = [index + 1];
    for (let column = 0; column < other.length; column += 1) {
      const replaced = (row[column] ?? 0) + (other[column] === one[index] ? 0 : 1);
      next.push(Math.min(replaced, (row[column + 1] ?? 0) + 1, (next[column] ?? 0) + 1));
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}
