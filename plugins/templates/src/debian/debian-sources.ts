/** Suites without an archive of security updates. */
const ROLLING: ReadonlySet<string> = new Set(["sid", "unstable", "experimental"]);
const MIRROR = "http://deb.debian.org";

/** Lines of sources.list(5) for the newest packages of a suite. */
export function newestSources(suite: string): readonly string[] {
  return sources(suite, { archiveOf: (name) => `${MIRROR}/${name}`, options: "" });
}

/**
 * Lines of sources.list(5) for the packages of a time.
 * @param archive `http://snapshot.debian.org/archive`
 */
export function snapshotSources(suite: string, snapshot: string, archive: string): readonly string[] {
  const root = archive.replace(/\/+$/, "");
  // What is signed for some days alone is over by now.
  return sources(suite, {
    archiveOf: (name) => `${root}/${name}/${snapshot}`,
    options: "[check-valid-until=no] ",
  });
}

/** A file that the archive of earlier packages has for each moment. */
export function snapshotRelease(suite: string, snapshot: string, archive: string): string {
  return `${archive.replace(/\/+$/, "")}/debian/${snapshot}/dists/${suite}/InRelease`;
}

function sources(
  suite: string,
  { archiveOf, options }: { readonly archiveOf: (name: string) => string; readonly options: string },
): readonly string[] {
  const line = (name: string, of: string): string => `deb ${options}${archiveOf(name)} ${of} main`;
  const own = line("debian", suite);
  if (ROLLING.has(suite)) return [own];
  return [own, line("debian", `${suite}-updates`), line("debian-security", `${suite}-security`)];
}
