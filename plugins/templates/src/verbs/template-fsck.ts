import { parseArgs } from "node:util";
import type { VerbAction } from "@coppice/core";
import type { ImageReport } from "../store/image-keeper.js";
import type { ImageRecord } from "../store/image-table.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { nameOf } from "./find-template.js";
import { withStoppedImages } from "./stopped-images.js";

const HEADING = ["FINDING", "IMAGE", "BACKEND", "OF"];

/**
 * Compares the store of templates with the images of the backends, and changes nothing. Images that nothing needs are
 * no fault: the next start removes them.
 */
export const templateFsck: VerbAction<TemplatesConfig> = {
  usage: "[--json]",
  async run(context) {
    const { args, print, printTable } = context;
    const { values } = parseArgs({
      args: [...args],
      options: { json: { type: "boolean", default: false } },
    });
    return withStoppedImages(context, async ({ store, keeper }) => {
      const report = await keeper.check();
      const findings = findingsOf(report, store);
      if (values.json) print(JSON.stringify(findings));
      else {
        printTable(
          HEADING,
          findings.map(({ finding, image, backend, users }) => [finding, image, backend, users.join(", ")]),
        );
        const { lost, unneeded, unknown } = report;
        print(`${lost.length} lost, ${unneeded.length} not needed, ${unknown.length} unknown`);
      }
      return report.lost.length + report.unknown.length === 0 ? 0 : 1;
    });
  },
};

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
  return builds.withImage(id).map((build) => {
    const template = templates.find(build.templateId);
    return `${template === undefined ? build.templateId : nameOf(template)}:${build.id}`;
  });
}
