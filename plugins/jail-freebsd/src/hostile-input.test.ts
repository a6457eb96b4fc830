import assert from "node:assert/strict";
import { mkdir, readFile, readdir, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { describe, it } from "node:test";
import type { Logger } from "@coppice/core";
import type { SandboxSpec } from "@coppice/core/backend";
import { MemoryLeases, SeededRandom } from "@coppice/core/testing";
import { Datasets } from "./zfs/datasets.js";
import { installationOf } from "./open-host.js";
import { JailBackend } from "./jail-backend.js";
import { JexecHelpers } from "./jails/jexec-helpers.js";
import { sandboxPaths } from "./jails/jails.js";
import { openRecordingHost, reasonWithoutRecordingHost } from "./testing/recording-host.js";
import { VnetNetworks } from "./network/vnet-networks.js";
import { VolumeDatasets } from "./zfs/volume-datasets.js";

const silent = { debug: () => undefined, info: () => undefined, warn: () => undefined } as unknown as Logger;
/** Part of every hostile string, so that it is found wherever it ends up. */
const MARK = "zqx";
/** Strings that a shell, jail.conf(5), pf.conf(5) or zfs(8) would interpret. */
const HOSTILE: readonly [string, ...string[]] = [
  " ",
  ..."\0\n\r\t \"'`\\$&|;<>(){}[]*?!#~%^=,@/:".split(""),
  "$(id)",
  "${x}",
  "`id`",
  "\n}\n",
  "..",
  "../../",
  "\u2028",
  "é",
  "-",
  "--",
];

/** Parts of random strings. */
const PARTS: readonly [string, ...string[]] = [
  "a",
  "0",
  "/x",
  "-o",
  "; ",
  "}\n",
  ' = "',
  "@b",
  "%2e",
  "=c",
  ...HOSTILE,
];
/** `COPPICE_FUZZ_SEED` replaces it; a failure prints it. */
const SEED = Number(process.env["COPPICE_FUZZ_SEED"] ?? 20_260_101);
const RANDOM_STRINGS = 60;

function* strings(): Generator<string> {
  for (const each of HOSTILE) yield* [`${MARK}${each}${MARK}`, `${each}${MARK}`, `${MARK}${each}`];
  const random = new SeededRandom(SEED);
  const some = () => Array.from({ length: random.below(5) }, () => random.of(PARTS)).join("");
  for (let count = 0; count < RANDOM_STRINGS; count++) yield some() + MARK + random.of(HOSTILE) + some();
}

async function filesBelow(directory: string): Promise<string> {
  const names = await readdir(directory, { recursive: true, withFileTypes: true });
  const texts = names
    .filter((entry) => entry.isFile() && entry.name.includes(".conf"))
    .map((entry) => readFile(join(entry.parentPath, entry.name), "utf8"));
  return names.map(({ name }) => name).join("\n") + (await Promise.all(texts)).join("\n");
}

/** Lines of zfs(8) on a dataset, all of them: it is asked again about others. */
function propertiesOf(name: string, values: Readonly<Record<string, string>> = {}): readonly string[] {
  const own = ["owner", "state", "template", "limits", "image", "snapshot"].map((each) => `coppice:${each}`);
  return [...own, "defer_destroy"].map((property) => {
    const value = values[property.replace("coppice:", "")];
    return `${name}\t${property}\t${value === undefined ? "-\t-" : `${value}\tlocal`}\n`;
  });
}

describe("hostile input of a client", { skip: reasonWithoutRecordingHost() ?? false }, () => {
  it("reaches no program, no jail.conf and no anchor of the host unless it is plain", async () => {
    await using recording = await openRecordingHost({ network: { kind: "vnet" } });
    await mkdir(join(recording.settings.directory, "roots"), { recursive: true, mode: 0o755 });
    await recording.answer("zfs", propertiesOf(recording.settings.dataset).join(""));
    const backend = new JailBackend({
      settings: recording.settings,
      leases: new MemoryLeases(),
      log: silent,
    });
    const plain: SandboxSpec = { id: "abc", template: "base", limits: {}, allowInternetAccess: true };
    const attempt = (changed: Partial<SandboxSpec>) =>
      assert.rejects(
        backend.provision({ ...plain, ...changed }, new AbortController().signal),
        `COPPICE_FUZZ_SEED=${SEED}: ${JSON.stringify(changed)} was taken`,
      );
    let count = 0;
    for (const text of strings()) {
      // Template names may have these characters.
      const isName = /^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(text);
      await attempt({ id: text });
      if (!isName) await attempt({ template: text });
      await attempt({ snapshot: text });
      await assert.rejects(backend.volumes.make({ id: text, sizeMiB: 16 }));
      await assert.rejects(backend.volumes.remove(text));
      await assert.rejects(backend.volumes.usage(text));
      await attempt({ egress: { allowOut: [text], denyOut: [] } });
      await attempt({ egress: { allowOut: [], denyOut: [text, "0.0.0.0/0"] } });
      await attempt({ egress: { allowOut: [`192.0.2.1${text}`], denyOut: [] } });
      count++;
    }
    assert.ok(count > 100);
    for (const length of [101, 300, 100_000]) {
      await assert.rejects(
        backend.provision({ ...plain, template: "x".repeat(length) }, new AbortController().signal),
        { code: "not_found" },
      );
    }
    const seen = (await recording.calls()).map(({ args, input }) => [...args, input].join("\n"));
    assert.doesNotMatch(seen.join("\n"), new RegExp(MARK));
    const { directory } = recording.settings;
    assert.doesNotMatch(await filesBelow(directory), new RegExp(MARK));
    // Users of the host must not reach files that root of a sandbox creates.
    for (const name of ["roots", "conf", "sockets", "helpers", "volumes"]) {
      assert.equal((await stat(join(directory, name))).mode & 0o777, 0o700, name);
    }
    await backend.close();
  });

  it("names no snapshot, dataset or mount point of a volume unless it is plain", async () => {
    await using recording = await openRecordingHost();
    const { host, settings } = recording;
    const owner = installationOf(settings.directory);
    const { dataset } = settings;
    const lines = [
      ...propertiesOf(dataset),
      ...propertiesOf(`${dataset}/volume-v1`, { owner, state: "running" }),
    ];
    await recording.answer("zfs", lines.join(""));
    const datasets = new Datasets(host, { parent: settings.dataset, owner });
    for (const text of strings()) {
      if (/^[a-z0-9]+$/.test(text)) continue;
      await assert.rejects(datasets.snapshot("e2b-abc", text), /is no id of a snapshot/);
      await assert.rejects(datasets.destroy(text), /is no dataset of ours/);
    }
    const volumes = new VolumeDatasets({ host, datasets, directory: settings.directory, owner: 1000 });
    for (const text of strings()) {
      for (const mount of [
        { volume: text, path: "/data" },
        { volume: "v1", path: text },
        { volume: "v1", path: `/data/${text}` },
      ]) {
        // Mount points may have these characters.
        if (mount.volume === "v1" && /^(\/[A-Za-z0-9._@:+-]+)+$/.test(mount.path)) continue;
        const mounts = volumes.mountsIn("/root-of-one", [{ ...mount, readOnly: false }]);
        const refused = mount.volume === "v1" ? { code: "invalid_argument" } : /is no id of a volume/;
        await assert.rejects(mounts, refused);
      }
    }
    const seen = (await recording.calls()).map(({ args }) => args.join("\n")).join("\n");
    assert.doesNotMatch(seen, new RegExp(MARK));
  });

  it("is in no argument of the program that starts a command", async () => {
    await using recording = await openRecordingHost();
    const { host, settings } = recording;
    const paths = sandboxPaths(settings.directory, "abc");
    await mkdir(dirname(paths.helper), { recursive: true });
    const helpers = new JexecHelpers({ host, program: "/.coppice/coppice-agent", log: silent });
    const helper = await helpers.open(paths, { user: "user", signal: AbortSignal.timeout(10_000) });
    let count = 0;
    for (const text of strings()) {
      const command = {
        path: text,
        args: [text],
        env: { [text]: text },
        cwd: `/${text}`,
        user: text,
        label: text,
      };
      // There is no jail to enter; a NUL is refused before.
      const code = text.includes("\0") ? "invalid_argument" : "unavailable";
      await assert.rejects(helper.spawn(command), { code });
      if (code === "unavailable") count++;
    }
    const calls = await recording.calls();
    assert.equal(calls.length, count);
    const words = ["e2b-abc", "/.coppice/coppice-agent", "launch", "3"];
    for (const { args, program } of calls) assert.deepEqual([program, ...args], ["jexec", ...words]);
    await helpers.remove(paths);
    await helper.closed;
  });

  it("changes no rules when it is part of new ones", async () => {
    await using recording = await openRecordingHost({ network: { kind: "vnet" } });
    const { addresses, host } = recording;
    const settings = recording.settings.network;
    const lease = await addresses.take("abc");
    const networks = new VnetNetworks({ host, settings, addresses, digest: "0" });
    for (const text of strings()) {
      for (const destination of [text, `192.0.2.1/32${text}`, `${text}192.0.2.1`]) {
        for (const rules of [
          { allowOut: [destination], denyOut: [] },
          { allowOut: [], denyOut: [destination] },
        ]) {
          await assert.rejects(networks.restrict(lease, rules), { code: "invalid_argument" });
        }
      }
    }
    assert.deepEqual(await recording.calls(), []);
  });

  it("does not run through a shell where it is an argument", async () => {
    await using recording = await openRecordingHost();
    const hostile = [...strings()].filter((text) => !text.includes("\0"));
    await recording.host.run("zfs", hostile);
    const [call] = await recording.calls();
    assert.deepEqual(call?.args, hostile);
  });
});
