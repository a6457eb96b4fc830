interface Pattern {
  /** Literal segments, and `:name`, which matches any. */
  readonly segments: readonly string[];
  readonly isOpen: boolean;
}

/**
 * Returns true when one path can match both of two route patterns: literal segments, `:name`, `*rest`. Regular
 * expressions are not understood: false.
 */
export function overlaps(one: string, other: string): boolean {
  if (isRegExp(one) || isRegExp(other)) return false;
  const [a, b] = [parse(one), parse(other)];
  const common = Math.min(a.segments.length, b.segments.length);
  for (let index = 0; index < common; index += 1) {
    if (!meet(a.segments[index] ?? "", b.segments[index] ?? "")) return false;
  }
  // The shorter one has to accept the rest.
  return (a.isOpen || b.segments.length === common) && (b.isOpen || a.segments.length === common);
}

function parse(path: string): Pattern {
  const segments = path.split("/");
  const first = segments.findIndex((segment) => /[*{(]/.test(segment));
  return first === -1 ? { segments, isOpen: false } : { segments: segments.slice(0, first), isOpen: true };
}

function meet(one: string, other: string): boolean {
  return one === other || (isParameter(one) && other !== "") || (isParameter(other) && one !== "");
}

function isParameter(segment: string): boolean {
  return /^:[A-Za-z_]\w*$/.test(segment);
}

function isRegExp(path: string): boolean {
  return /^\/\^|[$\\]/.test(path);
}
