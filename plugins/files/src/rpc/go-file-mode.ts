const TYPE = 0o170000;

/** Letters of the file types, as Go's `fs.FileMode` prints them. A regular file has none. */
const TYPE_LETTERS: ReadonlyMap<number, string> = new Map([
  [0o040000, "d"],
  [0o120000, "L"],
  [0o060000, "D"],
  [0o010000, "p"],
  [0o140000, "S"],
  [0o020000, "Dc"],
]);

/**
 * Formats `st_mode` as Go does: `-rw-r--r--`, `Lrwxrwxrwx`, `dtrwxrwxrwx`. The special bits stand before the nine
 * permission letters, so the text may exceed ten characters.
 */
export function goFileMode(rawMode: number): string {
  const letters = [
    // Go's order is fixed by its bit numbers, where sticky comes after character device.
    (TYPE_LETTERS.get(rawMode & TYPE) ?? "").slice(0, 1),
    rawMode & 0o4000 ? "u" : "",
    rawMode & 0o2000 ? "g" : "",
    (TYPE_LETTERS.get(rawMode & TYPE) ?? "").slice(1),
    rawMode & 0o1000 ? "t" : "",
  ].join("");
  const permissions = Array.from("rwxrwxrwx", (letter, index) => (rawMode & (0o400 >> index) ? letter : "-"));
  return (letters || "-") + permissions.join("");
}
