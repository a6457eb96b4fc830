const HEADING = [
  "# What a build of the recipe beside this file has: packages of Debian, of pip and of npm.",
  "# 'coppice template lock' writes it; docs/templates.md#pins.",
];

/** Packages of a build, on the architecture that it was made for (Debian packages differ by it). */
export interface ContentsLock {
  /** As OCI images call it: `amd64` */
  readonly architecture: string;
  /** As `listContents` lists them. */
  readonly contents: readonly string[];
}

export function formatLock({ architecture, contents }: ContentsLock): string {
  return `${[...HEADING, `architecture ${architecture}`, ...contents].join("\n")}\n`;
}

/** @throws Error with the line of a mistake */
export function parseLock(text: string): ContentsLock {
  const contents: string[] = [];
  let architecture: string | undefined;
  for (const [at, line] of text.split("\n").entries()) {
    if (line === "" || line.startsWith("#")) continue;
    const [kind, name, version, ...rest] = line.split(" ");
    if (kind === "architecture" && version === undefined) architecture = name;
    else if (version === undefined || version === "" || rest.length > 0)
      throw new Error(`line ${at + 1}: expected a kind, a name and a version of a package`);
    else contents.push(line);
  }
  if (architecture === undefined) throw new Error("it names no architecture");
  return { architecture, contents };
}

/** Packages that only one of both has: `-deb curl 8.14.1-1` of the lock, `+deb curl 8.14.1-2` of a build. */
export function differencesOf(locked: readonly string[], contents: readonly string[]): readonly string[] {
  const [before, now] = [new Set(locked), new Set(contents)];
  const found = [
    ...[...before].filter((line) => !now.has(line)).map((line) => ({ line, sign: "-" })),
    ...[...now].filter((line) => !before.has(line)).map((line) => ({ line, sign: "+" })),
  ];
  // A version that has changed is two lines, one below the other.
  return found
    .toSorted((one, other) => (one.line < other.line ? -1 : 1))
    .map(({ line, sign }) => sign + line);
}
