import type { Finding } from "@coppice/core";
import type { TemplatesConfig } from "../templates-config.js";
import type { HostPrograms } from "./host-programs.js";

export interface DiagnosedPrograms {
  readonly programs: Pick<HostPrograms, "run">;
  readonly settings: Pick<TemplatesConfig, "images" | "debian">;
  /** True where the configuration has a template of Debian packages. */
  readonly needsDebian: boolean;
  readonly signal: AbortSignal;
}

/** Looks for the programs that images are made with, for `coppice doctor`. */
export async function diagnosePrograms(options: DiagnosedPrograms): Promise<readonly Finding[]> {
  const { images, debian } = options.settings;
  const found = [diagnose(options, images.skopeo, "skopeo", "images.skopeo", "images cannot be pulled")];
  if (options.needsDebian) {
    const without = "templates of Debian packages cannot be built";
    found.push(diagnose(options, debian.mmdebstrap, "mmdebstrap", "debian.mmdebstrap", without));
  }
  return Promise.all(found);
}

async function diagnose(
  { programs, signal }: DiagnosedPrograms,
  path: string,
  name: string,
  key: string,
  without: string,
): Promise<Finding> {
  const run = { args: ["--version"], cwd: "/", environment: {}, signal };
  const { code, output } = await programs.run(path, run);
  if (code === 0) return { severity: "ok", message: output.trim() };
  return {
    severity: "warn",
    message: `${without}: ${name} does not run`,
    fix: `install ${name} (Debian: apt-get install ${name}, FreeBSD: pkg install ${name}), or set templates.${key}`,
  };
}
