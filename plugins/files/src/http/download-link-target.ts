import { ENVD_PORT, sandboxNotFound, type Sandboxes, type TargetResolver } from "@coppice/core";
import { DOWNLOAD_TOKEN_PATH, type DownloadLinks } from "./download-links.js";

/** Finds the sandbox of a download link, which only its token names. The resolver throws the errors of `check`. */
export function downloadLinkTarget(links: DownloadLinks, sandboxes: Sandboxes): TargetResolver {
  return async (_message, url) => {
    if (!url.pathname.startsWith(DOWNLOAD_TOKEN_PATH)) return undefined;
    const token = url.pathname.slice(DOWNLOAD_TOKEN_PATH.length);
    const sandboxId = links.check(token, url.searchParams.get("path") ?? "");
    const sandbox = sandboxes.find(sandboxId);
    if (sandbox?.isReachable === true) return { sandbox, port: ENVD_PORT };
    throw sandboxNotFound(sandboxId);
  };
}
