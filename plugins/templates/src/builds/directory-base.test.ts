import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { smallRoot, tarArchive } from "@coppice/core/testing";
import { BuildHost, WITHOUT_BUILDS } from "../testing/build-host.js";

it(
  "a directory is copied, once for each time of it, and stays as it was",
  { skip: WITHOUT_BUILDS, timeout: 120_000 },
  async (context) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-directory-"));
    context.after(() => rm(directory, { recursive: true }));
    const path = join(directory, "root");
    await mkdir(path);
    execFileSync("tar", ["-x", "-C", path], { input: tarArchive(smallRoot()) });
    await writeFile(join(path, "etc", "mine"), "first\n");
    await using host = await BuildHost.open();
    const base = { kind: "directory", path, modifiedAtMs: 1 } as const;
    const first = await host.build({
      base,
      steps: [
        ["USER", "root"],
        ["RUN", "cat /etc/mine; echo step > /etc/mine"],
      ],
    });
    assert.ok(first.lines.includes(`[base] FROM DIRECTORY ${path}`), first.lines.join("\n"));
    assert.ok(first.lines.includes("[builder 2/2] [stdout]: first"), first.lines.join("\n"));
    assert.equal(
      await host.run(first.result, "cat /etc/mine; stat -c %u /etc/passwd; id -un user"),
      "step\n0\nuser\n",
    );
    await writeFile(join(path, "etc", "mine"), "second\n");
    const cached = await host.build({ base });
    assert.equal(await host.run(cached.result, "cat /etc/mine"), "first\n");
    const later = await host.build({ base: { ...base, modifiedAtMs: 2 } });
    assert.equal(await host.run(later.result, "cat /etc/mine"), "second\n");
    await assert.rejects(
      host.build({ base: { ...base, path: join(directory, "missing") } }),
      /^BuildFailure: directory '.*missing' cannot be copied: tar: /,
    );
    assert.deepEqual(await host.leftovers(), []);
  },
);
