import type { Finding } from "@coppice/core";
import type { HostPrograms } from "./host-programs.js";

/** Looks for the program that pulls images, for `coppice doctor`. */
export async function diagnoseSkopeo(
  programs: HostPrograms,
  { skopeo, signal }: { readonly skopeo: string; readonly signal: AbortSignal },
): Promise<readonly Finding[]> {
  const { code, output } = await programs.run(skopeo, {
    args: ["--version"],
    cwd: "/",
    environment: {},
    signal,
  });
  if (code === 0) return [{ severity: "ok", message: output.trim() }];
  const message = "images of registries cannot be pulled: skopeo does not run";
  const fix = "install skopeo (Debian: apt-get install skopeo), or set templates.images.skopeo";
  return [{ severity: "warn", message, fix }];
}
