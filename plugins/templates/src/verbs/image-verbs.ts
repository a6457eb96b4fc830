import { messageOf, printFailure, type VerbAction } from "@coppice/core";
import { type ImageReport, ImageKeeper } from "../store/image-keeper.js";
import type { ImageRecord } from "../store/image-table.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { nameOf } from "./find-template.js";

const HEADING = ["FINDING", "IMAGE", "BACKEND", "OF"];

/**
 * Compares the store of templates with the images of the backends, and changes nothing. Images that nothing needs are
 * no fault: the next start removes them.
 */
export const templateFsck: VerbAction<TemplatesConfig> = (command, context) =>
  command
    .description("compares templates with the images of the backends; exit code 1 for a difference")
    .option("--json", "prints JSON")
    .addHelpText("after", "\nExample:\n  coppice template fsck coppice.yaml")
    .action(async ({ json }) => {
      const { print, printTable, exit } = context;
      await withStoppedImages(context, async ({ store, keeper }) => {
        const report = await keeper.check();
        const findings = findingsOf(report, store);
        if (json) print(JSON.stringify(findings));
        else {
          printTable(
            HEADING,
            findings.map(({ finding, image, backend, users }) => [finding, image, backend, users.join(", ")]),
          );
          const { lost, unneeded, unknown } = report;
          print(`${lost.length} lost, ${unneeded.length} not needed, ${unknown.length} unknown`);
        }
        if (report.lost.length + report.unknown.length > 0) exit(1);
      });
    });

function findingsOf({ lost, unneeded, unknown }: ImageReport, store: TemplatesStore) {
  const row = (finding: string) => (image: ImageReport["unneeded"][number]) => ({
    finding,
    image: image.id,
    backend: image.backend,
    users: usersOf(image, store),
  });
  return [...lost.map(row("lost")), ...unneeded.map(row("not needed")), ...unknown.map(row("unknown"))];
}

/** Builds that have an image, by the names of their templates; an image without one is that of a cached step. */
function usersOf({ id }: Pick<ImageRecord, "id">, { builds, templates }: TemplatesStore): readonly string[] {
  return builds.all({ image: id }).map((build) => {
    const template = templates.get({ id: build.templateId });
    return `${template === undefined ? build.templateId : nameOf(template)}:${build.id}`;
  });
}

/** Removes the images that nothing needs any more, as a running server does by itself. */
export const templateGc: VerbAction<TemplatesConfig> = (command, context) =>
  command
    .description("removes images that nothing needs, as a running server does by itself")
    .addHelpText("after", "\nExample:\n  coppice template gc coppice.yaml")
    .action(async () => {
      const { clock, config, print, exit } = context;
      await withStoppedImages(context, async ({ store, keeper }) => {
        store.layers.remove({ usedAtMs: { "<": clock.now() - config.layersKept } });
        const { unneeded } = await keeper.check();
        await keeper.remove(unneeded);
        const left = new Set((await keeper.check()).unneeded.map(({ id }) => id));
        for (const { id, backend } of unneeded)
          print(`${left.has(id) ? "not removed" : "removed"} ${id} of ${backend}`);
        if (left.size > 0) exit(1);
      });
    });

/**
 * Passes the images of a configuration to `use`: only while no server runs is none held by a build.
 * @throws BootError while one runs, or what `use` throws.
 */
async function withStoppedImages<T>(
  { clock, dataDir, whileStopped }: Parameters<VerbAction<TemplatesConfig>>[1],
  use: (images: { readonly store: TemplatesStore; readonly keeper: ImageKeeper }) => Promise<T>,
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
