import assert from "node:assert/strict";
import { chmod, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { HostPrograms } from "../images/host-programs.js";
import { templatesConfig } from "../templates-config.js";
import { DebianImages } from "./debian-image.js";

const FILL = "#!/bin/sh\nhead -c 30000000 /dev/zero > fill\nsleep 300\n";

it("packages without an end are given up, and leave nothing on the host's disk", async (t) => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-space-"));
  const programs = new HostPrograms();
  t.after(async () => {
    await programs.close();
    await rm(directory, { recursive: true });
  });
  const mmdebstrap = join(directory, "mmdebstrap");
  await writeFile(mmdebstrap, FILL);
  await chmod(mmdebstrap, 0o755);
  const layouts = join(directory, "layouts");
  const images = new DebianImages({
    programs,
    settings: templatesConfig.parse({ debian: { mmdebstrap }, images: { maxSize: "10MiB" } }),
    directory: () => layouts,
  });
  const making = images.make({ suite: "trixie", packages: [] }, { signal: AbortSignal.timeout(60_000) });
  await assert.rejects(making, /^BuildFailure: the packages take more than 20971520 bytes$/);
  assert.deepEqual(await readdir(layouts), []);
});
