import type { Finding } from "@coppice/core";
import type { BuildBase } from "../model/build-request.js";
import type { TemplatesConfig } from "../templates-config.js";
import { whyUnreachable } from "./archive-probe.js";
import { newestSources, snapshotRelease } from "./debian-sources.js";

export interface DiagnosedArchives {
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
