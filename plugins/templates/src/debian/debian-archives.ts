import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { type Finding, messageOf } from "@coppice/core";
import type { BuildBase } from "../model/build-request.js";
import type { TemplatesConfig } from "../templates-config.js";

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

/** Time to answer an accepted connection, in that of the connection. */
const ANSWER_TIMES = 5;
/** Time for which an answer holds. */
const KNOWN_MS = 10 * 60 * 1_000;

/**
 * Asks an archive for one of its files, without a second attempt.
 * @param connectMs time for the connection. @returns why the file cannot be had; undefined when it can
 */
async function whyUnreachable(url: string, connectMs: number): Promise<string | undefined> {
  const { promise, resolve } = Promise.withResolvers<string | undefined>();
  const request = url.startsWith("https:") ? requestHttps : requestHttp;
  const asked = request(url, { method: "HEAD" });
  const end = (reason: string | undefined): void => {
    resolve(reason);
    asked.destroy();
  };
  const text = (timeoutMs: number): string => `no answer within ${timeoutMs / 1_000} s`;
  let late = setTimeout(end, connectMs, text(connectMs));
  asked.on("socket", (socket) => {
    const isConnected = (): void => {
      clearTimeout(late);
      late = setTimeout(end, connectMs * ANSWER_TIMES, text(connectMs * ANSWER_TIMES));
    };
    if (socket.connecting) socket.once("connect", isConnected);
    else isConnected();
  });
  asked.on("response", ({ statusCode = 500 }) =>
    end(statusCode < 400 ? undefined : `it answers ${statusCode}`),
  );
  asked.on("error", (error) => end(messageOf(error)));
  asked.end();
  try {
    return await promise;
  } finally {
    clearTimeout(late);
  }
}

/** Answers of archives, each asked once in a while for all builds. */
export class ArchiveProbe {
  readonly #connectMs: number;
  readonly #known = new Map<
    string,
    { readonly untilMs: number; readonly reason: Promise<string | undefined> }
  >();

  constructor(connectMs: number) {
    this.#connectMs = connectMs;
  }

  /** As `whyUnreachable`. */
  async whyUnreachable(url: string): Promise<string | undefined> {
    const known = this.#known.get(url);
    if (known !== undefined && known.untilMs > performance.now()) return known.reason;
    const reason = whyUnreachable(url, this.#connectMs);
    this.#known.set(url, { untilMs: performance.now() + KNOWN_MS, reason });
    const found = await reason;
    // What can be reached is asked again: it may end at any time.
    if (found === undefined) this.#known.delete(url);
    return found;
  }
}

interface DiagnosedArchives {
  readonly settings: Pick<TemplatesConfig, "debian" | "pins">;
  /** Of the recipes of the configuration. */
  readonly bases: readonly BuildBase[];
}

interface Archive {
  readonly name: string;
  readonly url: string;
  readonly without: string;
  readonly fix: string;
}

const NETWORK = "let this host reach it, or name a proxy in HTTPS_PROXY and HTTP_PROXY";

/** Asks the archives that recipes need, by the proxies and the authorities of this host, for `coppice doctor`. */
export async function diagnoseArchives({ settings, bases }: DiagnosedArchives): Promise<readonly Finding[]> {
  const { snapshotTimeout: timeoutMs } = settings.debian;
  const archives = bases.flatMap((base) => (base.kind === "debian" ? debianArchives(base, settings) : []));
  const unique = [...new Map(archives.map((archive) => [archive.url, archive])).values()];
  return Promise.all(
    unique.map(async ({ name, url, without, fix }): Promise<Finding> => {
      const reason = await whyUnreachable(url, timeoutMs);
      if (reason === undefined) return { severity: "ok", message: `${name} can be reached (${url})` };
      return { severity: "warn", message: `${without}: ${name} cannot be reached (${url}): ${reason}`, fix };
    }),
  );
}

function debianArchives(
  { suite, snapshot }: BuildBase & { readonly kind: "debian" },
  { debian, pins }: DiagnosedArchives["settings"],
): readonly Archive[] {
  const [source = ""] = debian.sources.length > 0 ? debian.sources : newestSources(suite);
  const root = /https?:\/\/[^\s]+/.exec(source)?.[0].replace(/\/+$/, "");
  const newest = root !== undefined && {
    name: "Debian's archive",
    url: `${root}/dists/${suite}/InRelease`,
    without: "templates of Debian packages cannot be built",
    fix: `${NETWORK}, or name a mirror in templates.debian.sources`,
  };
  const pinned = snapshot !== undefined &&
    pins !== "ignore" && {
      name: "the archive of Debian's earlier packages",
      url: snapshotRelease(suite, snapshot, debian.snapshots),
      without:
        pins === "require"
          ? "templates of pinned packages cannot be built"
          : "recipes with `snapshot` get the newest packages",
      fix: `${NETWORK}, name a mirror in templates.debian.snapshots, or set templates.pins to ignore`,
    };
  return [newest, pinned].filter((archive) => archive !== false);
}
