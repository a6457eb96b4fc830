import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import { type FoundOnHost, diagnoseHost } from "./diagnose-host.js";
import { linuxNamespacesConfig } from "./linux-namespaces-config.js";

const FOUND: FoundOnHost = {
  limits: [],
  egress: undefined,
  keepsLayersInMemory: false,
  // The content of the fake program is its output.
  launcher: {
    run: async ([program = ""]) => {
      const output = await readFile(program, "utf8").catch(() => undefined);
      return { code: output === undefined ? 127 : 0, output: output ?? "" };
    },
  },
  templates: { get: async (name) => ({ name, lowers: [], binds: [], overlays: [] }) },
  users: undefined,
  idsMissing: undefined,
};

describe("a warning of doctor on a host for linux-namespaces", () => {
  let root: string;

  beforeEach(async () => {
    root = await mkdtemp(join(tmpdir(), "coppice-host-"));
    await put("usr/bin/sudo", "#!/bin/sh\n");
    await put("usr/bin/node", "v24.0.0 true\n");
    await put("proc/sys/fs/inotify/max_user_instances", "128\n");
  });
  afterEach(async () => {
    await rm(root, { recursive: true });
  });

  async function put(path: string, text: string): Promise<void> {
    await mkdir(dirname(join(root, path)), { recursive: true });
    await writeFile(join(root, path), text, { mode: 0o755 });
  }

  async function warnings({
    release = "6.1.0-31-amd64",
    settings = {},
    plugins = ["jupyter"],
    found = FOUND,
  } = {}): Promise<readonly string[]> {
    const parsed = linuxNamespacesConfig.parse({ directory: root, ...settings });
    const findings = await diagnoseHost(parsed, found, { plugins: new Set(plugins) }, { root, release });
    return findings
      .filter(({ severity }) => severity !== "ok")
      .map(({ message, fix }) => `${message}; ${fix}`);
  }

  it("is absent where nothing is missing", async () => {
    assert.deepEqual(await warnings(), []);
  });

  it("says that sandboxes have user ids of the host, and why", async () => {
    const found = { ...FOUND, idsMissing: "map-ids /usr: Invalid argument" };
    const [warning = "", ...others] = await warnings({ found });
    assert.match(
      warning,
      /limits per user, with users of the host: map-ids \/usr: Invalid argument; use Linux 5\.19/,
    );
    assert.deepEqual(others, []);
  });

  it("gives the inotify limit that all sandboxes share on an old kernel", async () => {
    for (const release of ["5.10.0-30-amd64", "5.18.9", "4.19.0"]) {
      const [warning = "", ...others] = await warnings({ release });
      assert.match(warning, /watch files 128 times.*; sysctl fs.inotify.max_user_instances=8192$/);
      assert.deepEqual(others, []);
    }
    assert.deepEqual(await warnings({ release: "5.19.0" }), []);
    await put("proc/sys/fs/inotify/max_user_instances", "8192\n");
    assert.deepEqual(await warnings({ release: "5.10.0" }), []);
  });

  it("says that sandboxes lack sudo, unless it is disabled or they have another /usr", async () => {
    await rm(join(root, "usr/bin/sudo"));
    const [warning = "", ...others] = await warnings();
    assert.match(warning, /no sudo in sandboxes.*; apt-get install sudo$/);
    assert.deepEqual(others, []);
    assert.deepEqual(await warnings({ settings: { sudo: false } }), []);
    const base = { kind: "directory", path: "/srv/debian" };
    assert.deepEqual(await warnings({ settings: { templates: { base } } }), []);
  });

  it("says that Node.js is missing or too old for kernels of the code interpreter", async () => {
    await put("usr/bin/node", "v20.19.2 false\n");
    assert.match((await warnings()).join("\n"), /^no TypeScript .* v20\.19\.2, .* 22\.13; name a Node\.js/);
    await rm(join(root, "usr/bin/node"));
    assert.match((await warnings()).join("\n"), /^no JavaScript or TypeScript .* is no Node\.js; name/);
    await put("opt/node", "v24.0.0 true\n");
    assert.deepEqual(await warnings({ settings: { node: join(root, "opt/node") } }), []);
    assert.deepEqual(await warnings({ plugins: [] }), []);
    const directory = { kind: "directory", path: "/srv/debian" };
    assert.deepEqual(await warnings({ settings: { templates: { "code-interpreter-v1": directory } } }), []);
  });

  it("says what unpacks images, where templates are built", async () => {
    const plugins = ["jupyter", "templates"];
    const missing =
      "no image can be unpacked: this host does not have the program umoci; apt-get install umoci";
    assert.deepEqual(await warnings({ plugins }), [missing]);
    await put("usr/bin/umoci", "");
    assert.deepEqual(await warnings({ plugins }), []);
    const found = { ...FOUND, users: { words: [], hasAccounts: false, reason: "no uidmap" } };
    assert.match(
      (await warnings({ plugins, found })).join("\n"),
      /no image can be used: images need separate accounts/,
    );
  });
});
