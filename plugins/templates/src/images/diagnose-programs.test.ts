import assert from "node:assert/strict";
import { it } from "node:test";
import { templatesConfig } from "../templates-config.js";
import { diagnosePrograms, HostPrograms } from "./host-programs.js";

it("the doctor names each program that the configured templates need and that is missing", async () => {
  const programs = new HostPrograms();
  const settings = templatesConfig.parse({
    images: { skopeo: "/missing/skopeo" },
    debian: { mmdebstrap: "/missing/mmdebstrap" },
  });
  const { signal } = new AbortController();
  try {
    const findings = await diagnosePrograms({ programs, settings, needsDebian: true, signal });
    assert.deepEqual(
      findings.map(({ severity, message }) => [severity, message]),
      [
        ["warn", "images cannot be pulled: skopeo does not run"],
        ["warn", "templates of Debian packages cannot be built: mmdebstrap does not run"],
      ],
    );
    const [only, ...others] = await diagnosePrograms({
      programs,
      // Any program that knows its version.
      settings: { ...settings, images: { ...settings.images, skopeo: process.execPath } },
      needsDebian: false,
      signal,
    });
    assert.deepEqual([only, others], [{ severity: "ok", message: process.version }, []]);
  } finally {
    await programs.close();
  }
});
