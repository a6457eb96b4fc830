import { messageOf, printFailure, type VerbContext } from "@coppice/core";
import { ImageKeeper } from "../store/image-keeper.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";

/** The images of templates while no server runs. */
export interface StoppedImages {
  readonly store: TemplatesStore;
  readonly keeper: ImageKeeper;
}

/**
 * Passes the images of a configuration to `use`: only while no server runs is none held by a build.
 * @throws BootError while one runs, or what `use` throws.
 */
export async function withStoppedImages<T>(
  { clock, dataDir, whileStopped }: VerbContext<TemplatesConfig>,
  use: (images: StoppedImages) => Promise<T>,
): Promise<T> {
  return whileStopped(async (backends) => {
    using store = new TemplatesStore(dataDir());
    const complain = (fields: unknown, message = "it failed"): void => {
      const { err } = fields as { readonly err?: unknown };
      printFailure(`${message}: ${messageOf(err)}`);
    };
    const log = { warn: complain, error: complain };
    return await use({ store, keeper: new ImageKeeper({ store: () => store, backends, clock, log }) });
  });
}
