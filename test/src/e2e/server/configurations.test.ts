import assert from "node:assert/strict";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { startCoppice } from "../../harness/server/coppice-command.js";

const CONFIG = fileURLToPath(new URL("../../../../config", import.meta.url));
/** What these files take from the environment and have no default for. */
const SETTINGS = {
  COPPICE_API_KEY: `e2b_${"5eed".repeat(10)}`,
  COPPICE_FLEET_NODE: "a",
  COPPICE_FLEET_HOST: "10.0.0.1",
  COPPICE_FLEET_SECRET: "5eed".repeat(16),
};

describe("the configurations in config/", () => {
  it("are valid", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    try {
      const made = await startCoppice(["tls", "init", "sandboxes.example", directory]).end;
      assert.equal(made.code, 0, made.stderr);
      // The manual has all keys, also those that have no default.
      const files = (await readdir(CONFIG)).filter((name) => /(?<!^default)\.yaml$/.test(name));
      assert.ok(files.includes("fleet.yaml"));
      for (const file of files) {
        const copy = join(directory, file);
        // The place of certificates; those of this test are elsewhere.
        await writeFile(
          copy,
          (await readFile(join(CONFIG, file), "utf8")).replaceAll("/etc/coppice", directory),
        );
        const { code, stdout, stderr } = await startCoppice(["check", copy], SETTINGS).end;
        assert.equal(code, 0, `${file}: ${String(stdout)}${stderr}`);
      }
    } finally {
      await rm(directory, { recursive: true });
    }
  });
});
