import assert from "node:assert/strict";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { parse } from "yaml";
import type { Sandbox } from "@coppice/core/backend";
import { fakeClock } from "@coppice/core/testing";
import plugin, { JailBackend, type JailSettings } from "@coppice/plugin-jail-freebsd";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { eventually } from "../../harness/host/eventually.js";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";

const RECIPES = ["base.yaml", "code-interpreter-v1.yaml"].map((name) =>
  fileURLToPath(new URL(`../../../../config/freebsd/${name}`, import.meta.url)),
);
const skip = reasonWithoutFreebsdHost() ?? false;
const skipSigned =
  skip || (!existsSync("/usr/bin/signify-openbsd") && "signify is missing (apt: signify-openbsd)");

describe("coppice jail-template, on a FreeBSD host", { skip }, () => {
  let host: FreebsdHost;
  let dataDir: string;
  let settings: JailSettings;
  let file: string;
  let count = 0;

  const zfs = (...words: readonly string[]) => host.run(host.settings.programs.zfs, ...words);
  /** Runs a verb in this process, where it takes a fraction of the time. @returns what it printed. */
  const template = async (action: string, ...args: readonly string[]): Promise<string> => {
    const printed: string[] = [];
    const code = await plugin.verbs["jail-template"]?.[action]?.run({
      config: settings,
      args,
      clock: fakeClock(),
      dataDir: () => dataDir,
      server: () => assert.fail("it speaks to no server"),
      whileStopped: () => assert.fail("it may run beside a server"),
      print: (line) => printed.push(line),
      printTable: () => undefined,
    });
    assert.equal(code, 0);
    return printed.map((line) => `${line}\n`).join("");
  };
  const list = async () => JSON.parse(await template("list", "--json")) as readonly Record<string, string>[];
  const states = async () =>
    (await list()).map(({ state }) => state ?? "").toSorted((a, b) => a.localeCompare(b));
  const describeTemplate = (more: object = {}) =>
    writeFile(
      file,
      JSON.stringify({
        name: "science",
        base: { sets: ["base.txz"] },
        packages: ["python311", "py311-ipykernel", "py311-numpy", "py311-pandas", "py311-matplotlib"],
        users: [{ name: "analyst" }],
        directories: [{ path: "/data", mode: "0700", owner: "analyst" }],
        files: [{ source: "note", path: "/data/note", mode: "0640", owner: "analyst" }],
        links: [{ path: "/usr/local/bin/python3", to: "python3.11" }],
        ...more,
      }),
    );
  const writeConfiguration = async (settings: object = {}) => {
    const path = join(host.directory, `${count++}.yaml`);
    const listeners = { api: { host: "127.0.0.1", port: 0 } };
    const plugins = { "jail-freebsd": { ...host.configuration, ...settings } };
    await writeFile(path, JSON.stringify({ listeners, dataDir: dirname(dataDir), plugins }));
    return path;
  };
  const provision = async (backend: JailBackend): Promise<Sandbox> => {
    const id = `tpl${count++}`;
    const spec = { id, template: "science", limits: {}, allowInternetAccess: false };
    return backend.provision(spec, new AbortController().signal);
  };
  const settingsOf = (more: Partial<JailSettings> = {}): JailSettings => {
    const { mounts, user } = host.settings.templates["base"] ?? { mounts: [], user: "user" };
    // The system of this template is the host's, where FreeBSD's would be its own.
    const system = mounts
      .filter(({ target }) => target === "/usr")
      .map((mount) => ({ ...mount, target: "/system" }));
    return { ...host.settings, ...more, templates: { science: { mounts: system, user } } };
  };

  before(async () => {
    host = await openFreebsdHost();
    const directory = join(host.directory, "recipes");
    await mkdir(directory);
    file = join(directory, "science.yaml");
    await writeFile(join(directory, "note"), "kept\n");
    // A system of its own, whose programs are where sandboxes have the host's mounted.
    const root = join(host.directory, "jails/_template");
    await host.run(
      "/bin/sh",
      "-c",
      `cp -a ${root} ${host.directory}/system && cd ${host.directory}/system && mkdir system &&
       rm -f bin sbin lib lib32 lib64 libx32 && for name in bin sbin lib lib32 lib64 libx32; do
         [ -L /$name ] && ln -s system/$name $name; done; tar -cJf ${directory}/base.txz .`,
    );
    settings = host.settings;
    dataDir = join(host.directory, "data", "jail-freebsd");
    await mkdir(dataDir, { recursive: true });
    await describeTemplate();
  });
  after(() => host[Symbol.asyncDispose]());

  it("build what a file says, once, and sandboxes begin with it", async () => {
    const end = await startCoppice(["jail-template", "build", await writeConfiguration(), file]).end;
    assert.equal(end.code, 0, end.stderr);
    const printed = end.stdout.toString();
    assert.match(printed, /^tar -xpf \S+base\.txz -C /m);
    assert.match(printed, /^pkg -r \S+ install -y python311 py311-ipykernel /m);
    assert.match(printed, /\nscience [0-9a-f]{64}\n$/);
    assert.match(await template("build", file), /^science [0-9a-f]{64}, which was built before\n$/);
    assert.deepEqual(await states(), ["current"]);

    const backend = host.backend(settingsOf());
    const sandbox = await provision(backend);
    const script =
      "ls /var/db/pkg | wc -l; readlink /usr/local/bin/python3; stat -c '%U %a' /data; id -un 1001";
    const args = ["-c", `${script}; stat -c '%U %a' /data/note; cat /data/note`];
    const env = { PATH: "/bin" };
    const { output } = await sandbox.spawn({ path: "/bin/sh", args, env, input: "none", user: "root" });
    const pieces: Uint8Array[] = [];
    for await (const { data } of output) pieces.push(data);
    const text = Buffer.concat(pieces).toString();
    assert.equal(text, "5\npython3.11\nanalyst 700\nanalyst\nanalyst 640\nkept\n");
    await sandbox.destroy();
    await backend.close();
  });

  it("of config/freebsd have the shell by which E2B's SDKs start commands, at the path that they ask for", async () => {
    const base = { sets: ["freebsd.txz"] };
    // FreeBSD has no /bin/bash: its packages are below /usr/local.
    await host.run(
      "/bin/sh",
      "-c",
      `cd ${host.directory}/system && rm bin && mkdir bin && for name in sh cat ls sleep; do
         ln -s /system/bin/$name bin/$name; done && tar -cJf ${dirname(file)}/freebsd.txz .`,
    );
    const codeOfBash = async () => {
      const backend = host.backend(settingsOf());
      const sandbox = await provision(backend);
      try {
        const words = { path: "/bin/bash", args: ["-l", "-c", "exit 43"], env: {}, input: "none" } as const;
        return (await (await sandbox.spawn(words)).exit).code;
      } finally {
        await sandbox.destroy();
        await backend.close();
      }
    };
    await describeTemplate({ base, packages: [], links: [] });
    await template("build", file);
    assert.equal(await codeOfBash(), 127);
    for (const recipe of RECIPES) {
      const { packages, links } = parse(await readFile(recipe, "utf8"));
      await describeTemplate({ base, packages, links });
      await template("build", file);
      assert.equal(await codeOfBash(), 43, recipe);
    }
    await describeTemplate();
    await template("build", file);
    await template("gc");
  });

  it("change at once to what is built next, and keep what sandboxes were cloned from", async () => {
    const backend = host.backend(settingsOf());
    const sandbox = await provision(backend);
    await describeTemplate({ revision: "two" });
    await template("build", file);
    assert.deepEqual(await states(), ["current", "in use"]);
    assert.equal(await template("gc"), "");
    await sandbox.destroy();
    assert.deepEqual(await states(), ["current", "unused"]);
    const old = (await list()).find(({ state }) => state === "unused");
    settings = {
      ...host.settings,
      templates: { old: { snapshot: old?.["snapshot"], user: "user", mounts: [] } },
    };
    assert.equal(await template("gc"), "");
    settings = host.settings;
    assert.match(await template("gc"), /^removed science template-science-[0-9a-f]{16}\n$/);
    assert.deepEqual(await states(), ["current"]);
    await backend.close();
  });

  it("say which packages they have, so that the same file with newer ones is told from the last", async () => {
    const packagesOf = async (revision: string) => {
      await describeTemplate({ revision });
      assert.match(await template("build", file), /^packages: py311-ipykernel-\S+ .* python311-\S+$/m);
      return (await list()).find(({ state }) => state === "current")?.["packages"];
    };
    const first = await packagesOf("of today");
    assert.match(first ?? "", /^[0-9a-f]{16}$/);
    assert.equal(await packagesOf("the same day"), first);
    await writeFile(join(host.directory, "state", "pkg-version"), "1.1\n");
    assert.notEqual(await packagesOf("of tomorrow"), first);
    await describeTemplate({ packages: [], links: [] });
    await template("build", file);
    assert.equal((await list()).find(({ state }) => state === "current")?.["packages"], "-");
    await template("gc");
  });

  it("say what is wrong where their dataset is not there", async () => {
    const whole = settings;
    settings = { ...whole, dataset: "coppice/none" };
    for (const [action, ...words] of [["build", file], ["list"], ["gc"]] as const) {
      await assert.rejects(template(action, ...words), {
        code: "failed_precondition",
        message: /^zfs \w+ ended with 1: .* does not exist$/,
      });
    }
    settings = whole;
  });

  it("leave nothing of a build that fails, and say why", async () => {
    const before = await zfs("list", "-H", "-o", "name", "-r", "-t", "all", "coppice");
    await describeTemplate({ packages: ["nothing-like-that"] });
    await assert.rejects(template("build", file), {
      code: "failed_precondition",
      message: /pkg -r ended with 70: pkg: No packages available to install matching/,
    });
    await describeTemplate({
      links: [
        { path: "/escape", to: "/etc" },
        { path: "/escape/owned", to: "x" },
      ],
    });
    await assert.rejects(template("build", file), /\/escape\/owned: a symbolic link is on the way to it/);
    assert.ok(!existsSync("/etc/owned"));
    assert.equal(await zfs("list", "-H", "-o", "name", "-r", "-t", "all", "coppice"), before);
  });

  it("begin a build anew that was killed, and keep a second one from joining it", async () => {
    const marker = join(host.directory, "reached");
    const slow = join(host.directory, "slow-pkg");
    await writeFile(slow, `#!/bin/sh\necho $$ > ${marker}\nexec sleep 300\n`);
    await chmod(slow, 0o755);
    const programs = { ...(host.configuration["programs"] as object), pkg: slow };
    await describeTemplate({ revision: "killed" });
    const running = startCoppice(["jail-template", "build", await writeConfiguration({ programs }), file]);
    await eventually("pkg runs", () => existsSync(marker), 30_000);
    await assert.rejects(template("build", file), {
      code: "failed_precondition",
      message: "another process builds or removes templates",
    });
    const ended = once(running.child, "exit");
    running.child.kill("SIGKILL");
    await ended;
    assert.deepEqual(await states(), ["current", "unfinished"]);
    await template("build", file);
    assert.deepEqual(await states(), ["current", "unused"]);
    assert.match(await template("gc"), /^removed science/);
  });

  it("touch nothing of another builder", async () => {
    await zfs(
      "create",
      "-o",
      "coppice:builder=else",
      "-o",
      "coppice:name=science",
      "coppice/jails/template-science-theirs",
    );
    assert.deepEqual(await states(), ["current"]);
    assert.equal(await template("gc"), "");
    await zfs("get", "name", "coppice/jails/template-science-theirs");
  });

  it(
    "are refused where they are not signed, or not by that key, when signatures are asked for",
    { skip: skipSigned },
    async () => {
      const { signify } = host.settings.programs;
      const [keys, directory] = [join(host.directory, "keys"), join(host.directory, "signatures")];
      await mkdir(keys);
      await mkdir(directory);
      for (const name of ["ours", "theirs"]) {
        await host.run(signify, "-G", "-n", "-p", join(keys, `${name}.pub`), "-s", join(keys, `${name}.sec`));
      }
      const current = (await list()).find(({ state }) => state === "current");
      const message = join(host.directory, "guid");
      await writeFile(message, current?.["guid"] ?? "");
      const leaf = current?.["snapshot"]?.split("/").at(-1) ?? "";
      const sign = (key: string) =>
        host.run(
          signify,
          "-S",
          "-s",
          join(keys, `${key}.sec`),
          "-m",
          message,
          "-x",
          join(directory, `${leaf}.sig`),
        );
      const templateSignatures = { publicKey: join(keys, "ours.pub"), directory };
      const backend = host.backend(settingsOf({ templateSignatures }));
      const refused = { code: "failed_precondition" };
      await assert.rejects(provision(backend), { ...refused, message: "template 'science' is not signed" });
      await sign("theirs");
      await assert.rejects(provision(backend), {
        ...refused,
        message: /has a signature that is not of its key/,
      });
      await sign("ours");
      await (await provision(backend)).destroy();
      assert.deepEqual(await host.leaks(), []);
      await backend.close();
    },
  );
});
