import assert from "node:assert/strict";
import { mkdir, readFile, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { describe, it } from "node:test";
import { Jails, sandboxPaths } from "./jails.js";
import { openRecordingHost, reasonWithoutRecordingHost } from "../testing/recording-host.js";

const LISTED = ["allow.routing", "allow.mount.", "allow.extattr", "path"];

function jlsOf(names: readonly string[]): string {
  const jail = names.map((name) => ({ name }));
  return JSON.stringify({ "__version": "2", "jail-information": { jail } });
}

describe("the commands of a jail", { skip: reasonWithoutRecordingHost() ?? false }, () => {
  it("are exact, and its jail.conf denies the parameters that this kernel supports", async () => {
    await using recording = await openRecordingHost();
    const { directory, devfsRuleset } = recording.settings;
    const paths = sandboxPaths(directory, "abc");
    await mkdir(dirname(paths.conf), { recursive: true });
    await recording.answer("sysctl", LISTED.map((name) => `security.jail.param.${name}\n`).join(""));
    const jails = await Jails.open(recording.host);
    const { name, root } = paths;
    const stack = { kind: "own" } as const;
    const options = {
      name,
      hostname: "abc",
      root,
      stack,
      devfsRuleset,
      procfs: false,
      sysvipc: false,
      mounts: [],
    };
    await jails.create(paths, options);
    assert.equal((await stat(paths.conf)).mode & 0o777, 0o600);
    const text = await readFile(paths.conf, "utf8");
    assert.match(
      text,
      /^ {2}allow\.norouting;\n {2}allow\.noextattr;|^ {2}allow\.noextattr;\n {2}allow\.norouting;/m,
    );
    assert.doesNotMatch(text, /nosetaudit|noadjtime|nosettime|tampering/);

    await recording.answer("ps", "TJ\nTsJ\n  TL+J\nZJ\n");
    await jails.pause(name);
    await jails.resume(name);
    await recording.answer("jls", jlsOf(["e2b-abc", "e2b-other"]));
    assert.deepEqual(await jails.names(), new Set(["e2b-abc", "e2b-other"]));
    await recording.answer(
      "mount",
      `devfs\t\t${root}/dev devfs rw 0 0\n/usr ${root}/usr nullfs ro 0 0\n/ / ufs rw 1 1\n`,
    );
    await jails.remove(paths);
    await recording.answer("mount", "");
    // Without our jail.conf, a jail with another root belongs to another program.
    await recording.answer("jls", "/somewhere/e2b-abc\n");
    await jails.remove(paths);
    await recording.answer("jls", `${root}\n`);
    await jails.remove(paths);

    const calls = await recording.calls();
    assert.deepEqual(
      calls.map(({ program, args }) => [program, ...args].join(" ")),
      [
        "sysctl -N security.jail.param",
        `jail -q -f ${paths.conf} -c e2b-abc`,
        "ifconfig -j e2b-abc lo0 inet 127.0.0.1/8 up",
        "pkill -STOP -j e2b-abc",
        "ps -J e2b-abc -o state=",
        "pkill -CONT -j e2b-abc",
        "jls --libxo json name",
        `jail -q -f ${paths.conf} -r e2b-abc`,
        "mount -p",
        `umount -f ${root}/usr ${root}/dev`,
        "jls -j e2b-abc path",
        "mount -p",
        "jls -j e2b-abc path",
        "jail -q -f - -r e2b-abc",
        "mount -p",
      ],
    );
    const conf = calls.find(({ program, args }) => program === "jail" && args.includes("-"))?.input;
    assert.equal(conf, `e2b-abc { path = "${root}"; stop.timeout = "0"; }\n`);
  });

  it("do not take a list that is cut off for one with fewer jails, nor silence for a stopped process", async () => {
    await using recording = await openRecordingHost();
    const jails = await Jails.open(recording.host);
    await recording.answer("jls", jlsOf([]));
    assert.deepEqual(await jails.names(), new Set());
    const whole = jlsOf(["e2b-abc", "e2b-other"]);
    for (const said of ["", "e2b-abc\n", "{}", "null", whole.slice(0, -1), whole.slice(0, 60)]) {
      await recording.answer("jls", said);
      await assert.rejects(jails.names(), /jls ended with 0, but its list is not whole/, said);
    }
    await recording.answer("ps", "");
    await assert.rejects(jails.pause("e2b-abc"), /ps -J ended with 0/);
  });

  it("stop all processes again while one of them still runs", async () => {
    await using recording = await openRecordingHost();
    const { directory, programs } = recording.settings;
    await mkdir(directory);
    const count = join(directory, "count");
    // All processes are stopped at the third check.
    const script = `echo x >> ${count}\n[ $(wc -l < ${count}) -lt 3 ] && echo SJ\necho TJ`;
    await writeFile(programs.ps, `#!/bin/sh\n${script}\n`);
    const jails = await Jails.open(recording.host);
    await recording.calls();
    await jails.pause("e2b-abc");
    const stops = (await recording.calls()).map(({ program, args }) => [program, ...args].join(" "));
    assert.deepEqual(
      stops,
      Array.from({ length: 3 }, () => "pkill -STOP -j e2b-abc"),
    );
  });
});
