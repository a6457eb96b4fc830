import { BuildFailure } from "../model/build-failure.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { HostPrograms, HostRun } from "./host-programs.js";
import { makeImage, type MadeImage } from "./made-image.js";

export interface DebianImagesOptions {
  readonly programs: HostPrograms;
  readonly settings: TemplatesConfig["debian"];
  /** For layouts, which the next start removes if this server does not. */
  readonly directory: () => string;
}

export interface WantedDebian {
  readonly suite: string;
  readonly packages: readonly string[];
}

/** Makes images of Debian packages with mmdebstrap. */
export class DebianImages {
  readonly #options: DebianImagesOptions;

  constructor(options: DebianImagesOptions) {
    this.#options = options;
  }

  /**
   * Equal packages of equal versions make equal images.
   * @param onLine takes what mmdebstrap says. @throws BuildFailure, the signal's reason
   */
  async make(
    { suite, packages }: WantedDebian,
    { signal, onLine }: Pick<HostRun, "signal" | "onLine">,
  ): Promise<MadeImage> {
    const { programs, settings } = this.#options;
    return makeImage(this.#options.directory(), async (tar, directory) => {
      // In a user namespace: the scripts of packages have no power over this host.
      const words = ["--mode=unshare", "--variant=minbase", "--format=tar"];
      if (packages.length > 0) words.push(`--include=${packages.join(",")}`);
      const { code, output } = await programs.run(settings.mmdebstrap, {
        args: [...words, "--", suite, tar, ...settings.sources],
        cwd: directory,
        environment: {
          // All times of the image: it is reproducible.
          SOURCE_DATE_EPOCH: "0",
          // Files of other owners, which root alone could remove if mmdebstrap did not.
          ...(process.getuid?.() === 0 && { TMPDIR: directory }),
        },
        signal,
        ...(onLine && { onLine }),
      });
      if (code === 127)
        throw new BuildFailure("this server has no mmdebstrap, which its operator can install", "base");
      if (code !== 0) throw new BuildFailure(`mmdebstrap failed: ${lastError(output)}`, "base");
    });
  }
}

/** What a failed mmdebstrap says: its errors, else its last line. */
function lastError(output: string): string {
  const lines = output.trim().split("\n");
  const errors = lines.filter((line) => line.startsWith("E: "));
  return (errors.length > 0 ? errors.slice(-3).join("; ") : (lines.at(-1) ?? "")).slice(0, 500);
}
