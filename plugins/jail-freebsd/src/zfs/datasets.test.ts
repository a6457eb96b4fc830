import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Datasets } from "./datasets.js";
import {
  openRecordingHost,
  type RecordingHost,
  reasonWithoutRecordingHost,
} from "../testing/recording-host.js";

const PATH = "zroot/jails/e2b-abc";

function datasetsOf({ host, settings }: RecordingHost): Datasets {
  return new Datasets(host, { parent: settings.dataset, owner: "ours" });
}

/** Makes zfs(8) report an owner, and refuse a verb with these messages before it succeeds. */
async function refuse({ settings }: RecordingHost, verb: string, messages: readonly string[]): Promise<void> {
  const { directory, programs } = settings;
  await mkdir(directory, { recursive: true });
  const said = join(directory, "said");
  await writeFile(said, messages.map((message) => `${message}\n`).join(""));
  const script = `[ "$1" = get ] && printf 'ours\\tlocal\\n'
if [ "$1" = ${verb} ] && [ -s ${said} ]; then head -n 1 ${said} >&2; sed -i 1d ${said}; exit 1; fi
echo "$@" >> ${join(directory, "did")}
`;
  await writeFile(programs.zfs, `#!/bin/sh\n${script}`);
}

describe("datasets", { skip: reasonWithoutRecordingHost() ?? false }, () => {
  it("are destroyed by their installation alone, whatever their name", async () => {
    await using recording = await openRecordingHost();
    const datasets = datasetsOf(recording);
    // An inherited value does not show the owner; `-` means that there is none.
    for (const said of [
      "theirs\tlocal\n",
      "theirs\treceived\n",
      "ours\tinherited from zroot/jails\n",
      "-\t-\n",
    ]) {
      await recording.answer("zfs", said);
      await assert.rejects(datasets.destroy("e2b-abc"), { code: "permission_denied" }, said);
    }
    const calls = (await recording.calls()).map(({ args }) => args.join(" "));
    assert.deepEqual([...new Set(calls)], [`get -H -o value,source coppice:owner ${PATH}`]);
    for (const source of ["local", "received"]) {
      await recording.answer("zfs", `ours\t${source}\n`);
      await datasets.destroy("e2b-abc");
      assert.deepEqual(
        (await recording.calls()).slice(-2).map(({ args }) => args.join(" ")),
        [`unmount -f ${PATH}`, `destroy ${PATH}`],
      );
    }
  });

  it("are tried again only while they are busy, by the messages of each release", async () => {
    await using recording = await openRecordingHost();
    const datasets = datasetsOf(recording);
    await refuse(recording, "destroy", [
      `cannot destroy '${PATH}': dataset is busy`,
      `cannot unmount '/jails/e2b-abc': pool or dataset is busy`,
      `cannot unmount '/jails/e2b-abc': umount failed`,
      `cannot unmount '/jails/e2b-abc': Device busy`,
    ]);
    await datasets.destroy("e2b-abc");
    await refuse(recording, "destroy", ["cannot open: permission denied"]);
    await assert.rejects(datasets.destroy("e2b-abc"), { message: /permission denied/ });
    await refuse(recording, "unmount", [`cannot unmount '${PATH}': not currently mounted`]);
    await datasets.destroy("e2b-abc");
  });

  it("are refused with a reason while the pool is full", async () => {
    await using recording = await openRecordingHost();
    const datasets = datasetsOf(recording);
    const space = { mountPoint: "/jails/e2b-abc", refquotaMiB: 1 };
    const changes: Readonly<Record<string, () => Promise<void>>> = {
      clone: () => datasets.clone("e2b-abc", { ...space, origin: "zroot/jails/base@base", properties: {} }),
      create: () => datasets.create("volume-abc", space),
      snapshot: () => datasets.snapshot("e2b-abc", "abc"),
      set: () => datasets.set("e2b-abc", "state", "running"),
    };
    for (const [verb, change] of Object.entries(changes)) {
      await refuse(recording, verb, [`cannot ${verb} '${PATH}': out of space`]);
      await assert.rejects(change(), { code: "resource_exhausted", message: "the pool of the host is full" });
      await change();
    }
  });

  it("leave out what is missing of their use, and say why nothing is known", async () => {
    await using recording = await openRecordingHost();
    const datasets = datasetsOf(recording);
    const { programs } = recording.settings;
    const missing = "cannot open 'zroot/jails/e2b-gone': dataset does not exist";
    const known = `printf '${PATH}\\t7\\n'`;
    const use = async (script: string) => {
      await writeFile(programs.zfs, `#!/bin/sh\n${script}\n`);
      return [...(await datasets.usedBytes(["e2b-abc", "e2b-gone"]))];
    };
    assert.deepEqual(await use(`${known}; echo "${missing}" >&2; exit 1`), [["e2b-abc", 7]]);
    await assert.rejects(
      use(`echo "${missing}" >&2; echo "cannot open: I/O error" >&2; exit 1`),
      /I\/O error/,
    );
    await assert.rejects(use("exit 2"), /ended with 2/);
  });

  it("are all listed, or an error: output that is cut off, or that zfs list contradicts, forgets none", async () => {
    await using recording = await openRecordingHost({ hostOutputLimit: "1KiB" });
    const datasets = datasetsOf(recording);
    const { directory, programs } = recording.settings;
    await mkdir(directory, { recursive: true });
    const rows = (path: string, values: Readonly<Record<string, string>> = {}) => [
      ...["owner", "state", "template", "limits", "image", "snapshot"].map((name) => {
        const value = values[name];
        return `${path}\tcoppice:${name}\t${value === undefined ? "-\t-" : `${value}\tlocal`}\n`;
      }),
      `${path}\tdefer_destroy\t${values["destroyed"] ?? "-"}\t-\n`,
    ];
    const parent = rows("zroot/jails");
    const one = rows(PATH, { owner: "ours", state: "stopped", template: "base", limits: "1:2:3:4" });
    const other = rows("zroot/jails/e2b-def", { owner: "ours", state: "running" });
    const snapshot = rows(`${PATH}@kept1`, { snapshot: "kept" });
    const destroyed = rows(`${PATH}@destroyed`, { snapshot: "kept", destroyed: "on" });
    const whole = [...parent, ...one, ...snapshot, ...destroyed, ...other];
    const said = join(directory, "said.get");
    const answer = async (get: readonly string[]) => writeFile(said, get.join(""));
    const names = ["zroot/jails", PATH, `${PATH}@kept1`, `${PATH}@destroyed`, "zroot/jails/e2b-def"];
    await writeFile(
      programs.zfs,
      `#!/bin/sh\nif [ "$1" = list ]; then printf '%s\\n' ${names.join(" ")}; else cat ${said}; fi\n`,
    );
    await answer([...whole, `${PATH}#mark\ttype\t-\t-\n`]);
    assert.deepEqual(await datasets.owned("e2b-", true), [
      { name: "e2b-abc", state: "stopped", template: "base", limits: "1:2:3:4", image: undefined },
      { name: "e2b-def", state: "running", template: undefined, limits: undefined, image: undefined },
    ]);
    assert.deepEqual([...(await datasets.snapshots(true)).keys()], ["kept1"]);
    for (const bad of [
      [],
      ["garbage\n"],
      one,
      whole.slice(0, -1),
      [...whole.slice(0, -1), "zroot/jails/e2b-def\tcop"],
      [...parent, ...snapshot, ...other],
      [...parent, ...one, ...other],
      [...whole, ...rows("zroot/jails/more")],
    ]) {
      await answer(bad);
      await assert.rejects(
        datasets.owned("e2b-", true),
        /^Error: zfs get -r zroot\/jails ended with 0, but it/,
      );
      await assert.rejects(datasets.snapshots(true), /ended with 0, but it/);
    }
    // It is asked again.
    await answer([]);
    const asked = datasets.owned();
    await answer(whole);
    assert.equal((await asked).length, 2);
    // The limit of output is not one of datasets.
    const more = Array.from({ length: 500 }, (_, index) => `zroot/jails/e2b-${index}`);
    await answer([...whole, ...more.flatMap((path) => rows(path, { owner: "ours" }))]);
    assert.equal((await datasets.owned()).length, 502);
  });

  it("are retained unmounted while they have clones or snapshots", async () => {
    for (const reason of [
      `cannot destroy '${PATH}': filesystem has dependent clones`,
      `cannot destroy '${PATH}': filesystem has children`,
    ]) {
      await using recording = await openRecordingHost();
      await refuse(recording, "destroy", [reason]);
      await datasetsOf(recording).destroy("e2b-abc");
      const did = await readFile(join(recording.settings.directory, "did"), "utf8");
      assert.deepEqual(did.trim().split("\n").slice(-2), [
        `set mountpoint=none ${PATH}`,
        `set coppice:state=retained ${PATH}`,
      ]);
    }
  });

  it("that are retained are destroyed also where their last clone goes while others are collected", async () => {
    await using recording = await openRecordingHost();
    const { directory, programs } = recording.settings;
    await mkdir(directory, { recursive: true });
    const [clone, asked, did] = ["clone", "asked", "did"].map((name) => join(directory, name));
    assert.ok(clone && asked && did);
    await writeFile(clone, "");
    const names = ["owner", "state", "template", "limits", "image", "snapshot"].map(
      (name) => `coppice:${name}`,
    );
    const row = (path: string, property: string, value: string) => `${path}\t${property}\t${value}\tlocal\n`;
    const values: Readonly<Record<string, string>> = { "coppice:owner": "ours", "coppice:state": "retained" };
    const tree = ["zroot/jails", PATH].flatMap((path) =>
      [...names, "defer_destroy"].map((name) => row(path, name, (path === PATH && values[name]) || "-")),
    );
    await writeFile(join(directory, "tree"), tree.join(""));
    const script = `[ "$1" = get ] && exec cat ${join(directory, "tree")}
if [ -e ${clone} ]; then
  : > ${asked}
  while [ -e ${clone} ]; do sleep 0.01; done
  echo "cannot destroy '$2': filesystem has dependent clones" >&2
  exit 1
fi
echo "$@" >> ${did}
`;
    await writeFile(programs.zfs, `#!/bin/sh\n${script}`);
    const datasets = datasetsOf(recording);
    const first = datasets.collect();
    while (!existsSync(asked)) await sleep(10);
    const second = datasets.collect();
    await rm(clone);
    await Promise.all([first, second]);
    assert.equal(await readFile(did, "utf8"), `destroy ${PATH}\n`);
  });
});
