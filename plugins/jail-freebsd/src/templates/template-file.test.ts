import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { parse } from "yaml";
import { jailFreebsdConfig } from "../jail-freebsd-config.js";
import { readTemplateFile, templateFile } from "./template-file.js";

describe("the file of a template", () => {
  let directory: string;
  const whole = { name: "science", base: { sets: ["base.txz"] }, files: [{ source: "note", path: "/note" }] };
  const read = async (values: object, name = "template.yaml") => {
    await writeFile(join(directory, name), JSON.stringify(values));
    return readTemplateFile(join(directory, name));
  };

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-template-"));
    await writeFile(join(directory, "base.txz"), "base");
    await writeFile(join(directory, "note"), "note");
  });
  after(() => rm(directory, { recursive: true }));

  it("has a digest of the template's contents alone", async () => {
    const { digest, base, files } = await read(whole);
    assert.match(digest, /^[0-9a-f]{64}$/);
    assert.deepEqual(base, { sets: [join(directory, "base.txz")] });
    assert.equal(files[0]?.source, join(directory, "note"));
    await writeFile(join(directory, "other.txz"), "base");
    const same = { ...whole, base: { sets: ["./other.txz"] }, users: [{ name: "user", uid: 1000 }] };
    assert.equal((await read(same, "elsewhere.yaml")).digest, digest);
    const packages = (...names: readonly string[]) => read({ ...whole, packages: names });
    assert.equal((await packages("a", "b")).digest, (await packages("b", "a")).digest);
    const changes = [
      { name: "other" },
      { packages: ["a"] },
      { users: [] },
      { links: [{ path: "/a", to: "b" }] },
      { directories: [{ path: "/a" }] },
      { files: [{ source: "note", path: "/note", mode: "0600" }] },
      { revision: "2" },
      { base: { packages: ["FreeBSD-runtime"] } },
    ];
    const digests = await Promise.all(
      changes.map(async (change, index) => (await read({ ...whole, ...change }, `${index}.yaml`)).digest),
    );
    assert.equal(new Set([digest, ...digests]).size, changes.length + 1);
    await writeFile(join(directory, "note"), "changed");
    assert.notEqual((await read(whole)).digest, digest);
    await writeFile(join(directory, "base.txz"), "changed");
    assert.notEqual((await read(whole)).digest, digest);
  });

  it("gives the account that sandboxes run as the uid that volumes belong to", async () => {
    const { users } = await read(whole);
    const { volumeOwner } = jailFreebsdConfig.parse({});
    assert.deepEqual(users, [{ name: "user", uid: volumeOwner, shell: "/bin/sh" }]);
  });

  it("is valid where the project ships one", async () => {
    const file = new URL("../../../../config/freebsd/code-interpreter-v1.yaml", import.meta.url);
    const shipped = templateFile.parse(parse(await readFile(file, "utf8")));
    assert.equal(shipped.name, "code-interpreter-v1");
    for (const name of ["python311", "py311-ipykernel", "py311-numpy", "py311-pandas", "py311-matplotlib"]) {
      assert.ok(shipped.packages.includes(name), name);
    }
    const { volumeOwner } = jailFreebsdConfig.parse({});
    assert.deepEqual(
      shipped.users.map(({ name, uid }) => [name, uid]),
      [["user", volumeOwner]],
    );
  });

  it("is refused with the place of the error", async () => {
    const refused: readonly (readonly [object, RegExp])[] = [
      [{ name: "a/b" }, /name: /],
      [{ name: "Big" }, /name: /],
      [{ base: { sets: [] } }, /base/],
      [{ base: { sets: ["none.txz"] } }, /ENOENT.*none\.txz/],
      [{ base: { sets: ["-y"] } }, /base/],
      [{ base: { sets: ["base.txz"], packages: ["a"] } }, /base/],
      [{ packages: ["-y"] }, /packages\.0: expected the name of a package/],
      [{ packages: ["a b"] }, /packages\.0: /],
      [{ users: [{ name: "$(id)" }] }, /users\.0\.name: /],
      [{ users: [{ name: "a", uid: 0 }] }, /users\.0\.uid: /],
      [{ users: [{ name: "a", shell: "sh" }] }, /users\.0\.shell: /],
      [{ directories: [{ path: "/a/../b" }] }, /directories\.0\.path: /],
      [{ directories: [{ path: "/a", mode: "u+s" }] }, /directories\.0\.mode: /],
      [{ files: [{ source: "note", path: "relative" }] }, /files\.0\.path: /],
      [{ files: [{ source: "note", path: "/a\n/b" }] }, /files\.0\.path: /],
      [{ files: [{ source: "none", path: "/a" }] }, /ENOENT/],
      [{ links: [{ path: "/a", to: "b c" }] }, /links\.0\.to: /],
      [{ links: [{ path: "/a", to: "-f" }] }, /links\.0\.to: /],
      [{ postInstall: "rm -rf /" }, /postInstall/],
    ];
    for (const [change, message] of refused) {
      await assert.rejects(
        read({ ...whole, ...change }),
        { code: "invalid_argument", message },
        JSON.stringify(change),
      );
    }
    await assert.rejects(readTemplateFile(join(directory, "absent.yaml")), { code: "invalid_argument" });
    await writeFile(join(directory, "broken.yaml"), "name: [");
    await assert.rejects(readTemplateFile(join(directory, "broken.yaml")), { code: "invalid_argument" });
  });
});
