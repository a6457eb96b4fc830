import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { smallRoot, tarArchive, writeImageLayout } from "@coppice/core/testing";
import { imageSettingsOf } from "../model/pushed-template.js";
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

it(
  "an image that another server has built is unpacked with its configuration, and stays as it was",
  { skip: WITHOUT_BUILDS, timeout: 120_000 },
  async () => {
    await using host = await BuildHost.open();
    const path = join(host.directory, "recipe.image");
    const template = { environment: { A: "b" }, user: "user", workdir: "/srv", limits: { cpuCount: 4 } };
    const config = imageSettingsOf({ ...template, start: undefined });
    const files = [...smallRoot(), { name: "etc/mine", body: "theirs\n" }];
    await writeImageLayout(path, { layers: [files], config });
    const base = { kind: "layout", path } as const;
    const restore = { limits: false };
    const { result, lines } = await host.build({ base, restore });
    assert.ok(lines.includes(`[base] FROM LAYOUT ${path}`), lines.join("\n"));
    const { environment, user, workdir } = result.context;
    assert.deepEqual(
      { environment, user, workdir },
      { environment: { A: "b" }, user: "user", workdir: "/srv" },
    );
    assert.equal(await host.run(result, "cat /etc/mine; id -un user"), "theirs\nuser\n");
    const again = await host.build({ base, restore });
    assert.ok(again.lines.includes(`CACHED [base] FROM LAYOUT ${path}`), again.lines.join("\n"));

    const other = join(host.directory, "other.image");
    await writeImageLayout(other, { layers: [files], architecture: "s390x" });
    await assert.rejects(
      host.build({ base: { ...base, path: other }, restore }),
      /^BuildFailure: image '.*' cannot be read: it is for s390x, and this server for /,
    );
    await writeFile(join(path, "index.json"), "{}");
    await assert.rejects(
      host.build({ base, restore, force: true }),
      /^BuildFailure: image '.*' cannot be read: it is not as OCI specifies: /,
    );
    assert.deepEqual(await host.leftovers(), []);
  },
);
