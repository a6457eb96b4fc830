// A server that a test can kill: unpacks images in the directory of its first argument, commits sandboxes of them and
// removes both, again and again. The second argument is a directory for layouts.
import { join } from "node:path";
import type { Logger } from "@coppice/core";
import { writeImageLayout } from "@coppice/core/testing";
import { LinuxNamespacesBackend } from "../linux-namespaces-backend.js";
import { linuxNamespacesConfig } from "../linux-namespaces-config.js";
import { PYTHON } from "./test-backend.js";
import { ROOT, sandboxOf, writeText } from "./test-image.js";

const [, , directory = "", layouts = ""] = process.argv;
const log = { info: () => undefined, warn: () => undefined } as unknown as Logger;
const backend = new LinuxNamespacesBackend(linuxNamespacesConfig.parse({ directory, python: PYTHON }), log);
const layout = join(layouts, "layout");
await writeImageLayout(layout, { layers: [ROOT, [{ name: "etc/large", body: "x".repeat(100_000) }]] });
await backend.check();
process.stdout.write("ready\n");
const { signal } = new AbortController();
for (let round = 0; ; round++) {
  const lower = `lower${round}`;
  const upper = `upper${round}`;
  await backend.images?.unpack(
    lower,
    { layout, reference: "image", maxBytes: 2 ** 26, maxEntries: 100 },
    signal,
  );
  const sandbox = await sandboxOf(backend, lower);
  for (let file = 0; file < 5; file++) await writeText(sandbox, `/etc/made/${file}`, `made${file}`);
  await sandbox.committing?.commit(upper);
  await backend.images?.remove(lower);
  await sandbox.destroy();
  await backend.images?.remove(upper);
}
