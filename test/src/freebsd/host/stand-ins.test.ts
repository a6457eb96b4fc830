import assert from "node:assert/strict";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import {
  FREEBSD_SOURCES,
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";

const skip = reasonWithoutFreebsdHost() ?? false;

describe("the stand-ins for the programs of FreeBSD", { skip }, () => {
  let host: FreebsdHost;
  let root: string;
  let conf: string;

  const { jail, jexec, jls, mount, zfs } = {
    jail: (...words: readonly string[]) => host.run(host.settings.programs.jail, ...words),
    jexec: (...words: readonly string[]) => host.run(host.settings.programs.jexec, ...words),
    jls: (...words: readonly string[]) => host.run(host.settings.programs.jls, ...words),
    mount: () => host.run(host.settings.programs.mount, "-p"),
    zfs: (...words: readonly string[]) => host.run(host.settings.programs.zfs, ...words),
  };

  const unmountAll = async () => {
    const points = (await mount()).split("\n").map((line) => line.split("\t")[1] ?? "");
    const below = points.filter((point) => point.startsWith(`${root}/`)).toReversed();
    await host.run(host.settings.programs.umount, "-f", ...below);
  };
  /** Removes a jail with running processes. */
  const removeUsed = async (name: string, ofUsr = `/sbin/umount -t nullfs ${root}/usr: failed`) => {
    await assert.rejects(jail("-q", "-f", conf, "-r", name), (error: Error) =>
      [`/sbin/umount ${root}/dev: failed`, ofUsr].every((said) =>
        error.message.includes(`jail: ${name}: ${said}`),
      ),
    );
    await unmountAll();
  };

  before(async () => {
    host = await openFreebsdHost();
    await zfs("clone", "coppice/jails/_template@base", "coppice/jails/one");
    root = join(host.directory, "jails/one");
    conf = join(host.directory, "one.conf");
    const mounts = `mount += "/usr ${root}/usr nullfs ro 0 0"; mount.devfs; mount.procfs;`;
    const both = `vnet; persist; exec.clean; ${mounts}`;
    await writeFile(
      conf,
      `# two\none { path = "${root}"; host.hostname = 'first'; stop.timeout = 0; ${both} }
       patient { path = ${root}; stop.timeout = 1; ${both} }
       odd { path = ${root}; persist; allow.flying; }
       lost { path = ${root}/none; persist; }
       dotted.name { path = ${root}; persist; }
       link { path = ${root}; persist; mount += "/usr ${root}/bin nullfs ro 0 0"; }`,
    );
  });
  after(() => host[Symbol.asyncDispose]());

  it("make a jail that persists without a process, say so as jail(8) does, and remove it with its mounts", async () => {
    assert.equal(await jail("-f", conf, "-c", "one"), "one: created\n");
    await assert.rejects(jail("-f", conf, "-c", "one"), /jail: "one" already exists/);
    assert.match(await jls("name", "path"), new RegExp(`^one ${root}\n$`));
    assert.deepEqual(JSON.parse(await jls("-d", "-n", "--libxo", "json", "name", "path", "dying")), {
      "__version": "2",
      "jail-information": { jail: [{ name: "one", path: root, dying: false }] },
    });
    assert.match(await jls("-j", "one", "jid"), /^\d+\n$/);
    assert.match(await mount(), new RegExp(`^\\S+\t${root}/usr\t\\S+\tro\t0 0$`, "m"));
    assert.equal(await jail("-f", conf, "-r", "one"), "one: removed\n");
    assert.equal(await jls("name"), "");
    assert.doesNotMatch(await mount(), new RegExp(`${root}/`));
    await assert.rejects(jail("-f", conf, "-r", "one"), /ended with 1: jail: "one" not found/);
    await assert.rejects(jls("-j", "none", "jid"), /jls: jail "none" not found/);
  });

  it("say as much as jail(8) at each verbosity", async () => {
    assert.equal(await jail("-q", "-f", conf, "-c", "one"), "");
    assert.equal(await jail("-q", "-f", conf, "-r", "one"), "");
    await assert.rejects(jail("-q", "-f", conf, "-r", "one"), /ended with 1: $/);
    const ran = (...commands: readonly string[]) => commands.map((words) => `one: run command: ${words}`);
    const made = [
      ...ran(
        `/sbin/mount -t nullfs -o ro /usr ${root}/usr`,
        `/bin/sh -c . /etc/rc.subr; load_rc_config .; devfs_mount_jail ${root}/dev`,
        `/sbin/mount -t procfs . ${root}/proc`,
      ),
      `one: jail_set(JAIL_CREATE) name=one path=${root} host.hostname=first vnet persist`,
      "one: created",
    ];
    assert.deepEqual((await jail("-v", "-f", conf, "-c", "one")).trim().split("\n"), made);
    const unmounted = [`${root}/proc`, `${root}/dev`, `-t nullfs ${root}/usr`];
    const removed = ["one: removed", ...ran(...unmounted.map((words) => `/sbin/umount ${words}`))];
    assert.deepEqual((await jail("-v", "-f", conf, "-r", "one")).trim().split("\n"), removed);
    await assert.rejects(jail("-v", "-f", conf, "-r", "one"), /ended with 1: jail: "one" not found/);
  });

  it("keep a removed jail for a while, which is in the way of an unmounting without force, and of no other jail", async () => {
    await jail("-q", "-f", conf, "-c", "one");
    await jail("-q", "-f", conf, "-r", "one");
    assert.match(await jls("-d", "name", "dying"), /^one true$/m);
    await assert.rejects(jls("-j", "one", "jid"), /jls: jail "one" is dying/);
    await assert.rejects(jexec("one", "true"), /jexec: jail "one" is dying/);
    const busy = `cannot unmount '${root}': pool or dataset is busy`;
    for (const verb of ["unmount", "destroy"])
      await assert.rejects(zfs(verb, "coppice/jails/one"), (error: Error) => error.message.includes(busy));
    await zfs("unmount", "-f", "coppice/jails/one");
    await zfs("mount", "coppice/jails/one");
    await jail("-q", "-f", conf, "-c", "one");
    assert.match(await jls("-d", "-n", "name", "dying"), /^name=one nodying\nname=one dying$/m);
    await jail("-q", "-f", conf, "-r", "one");
  });

  it("print the number alone with -i, and leave mounts behind without the file, as jail(8) does", async () => {
    const jid = (await jail("-i", "-f", conf, "-c", "one")).trim();
    assert.match(jid, /^\d+$/);
    assert.equal((await jexec(jid, "/bin/hostname")).trim(), "first");
    await jail("-q", "-R", jid);
    assert.match(await mount(), new RegExp(`${root}/usr`));
    await unmountAll();
    assert.doesNotMatch(await mount(), new RegExp(`${root}/`));
  });

  it("refuse what jail(8) refuses", async () => {
    const refused = {
      "odd": "unknown parameter: allow.flying",
      "lost": `jail: lost: path ${root}/none: No such file or directory`,
      "dotted.name": "may not contain a period",
      "link": "is a symbolic link",
      "absent": 'jail: "absent" not found',
    };
    for (const [name, message] of Object.entries(refused)) {
      await assert.rejects(jail("-f", conf, "-c", name), (error: Error) => error.message.includes(message));
    }
    assert.equal(await jls("name"), "");
  });

  it("give those who ignore SIGTERM the stop timeout, then SIGKILL", async () => {
    await jail("-q", "-f", conf, "-c", "patient");
    const deaf = jexec(
      "-l",
      "patient",
      "/bin/sh",
      "-c",
      "trap '' TERM; echo up > /tmp/up; sleep 300; sleep 300",
    );
    const ended = assert.rejects(deaf);
    const meek = jexec(
      "-l",
      "patient",
      "/bin/sh",
      "-c",
      "trap 'echo told; exit 0' TERM; while :; do sleep 0.05; done",
    );
    await jexec("patient", "/bin/sh", "-c", "until [ -e /tmp/up ]; do sleep 0.02; done; sleep 0.3");
    await removeUsed("patient");
    assert.equal(await meek, "told\n");
    await ended;
  });

  it("run a command in a jail under the number that the caller sees, with the environment of a login class", async () => {
    await jail("-q", "-f", conf, "-c", "one");
    const environment = await jexec("-l", "-U", "user", "one", "/usr/bin/env");
    assert.deepEqual(environment.trim().split("\n").toSorted(), [
      "BLOCKSIZE=K",
      "HOME=/home/user",
      "LANG=C.UTF-8",
      "MAIL=/var/mail/user",
      "MM_CHARSET=UTF-8",
      "PATH=/sbin:/bin:/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin:/home/user/bin",
      "SHELL=/bin/bash",
      "USER=user",
    ]);
    assert.equal(
      await jexec("-l", "-U", "user", "one", "/bin/sh", "-c", "pwd; id -u; umask"),
      "/home/user\n1000\n0022\n",
    );
    assert.equal(await jexec("-l", "-d", "/tmp", "-U", "root", "one", "/bin/pwd"), "/tmp\n");
    const program = host.settings.programs.jexec;
    const same = await host.run(
      "/bin/sh",
      "-c",
      `sh -c 'echo $$; exec ${program} one /bin/sh -c "echo \\$\\$"'`,
    );
    const [outside, inside] = same.trim().split("\n");
    assert.equal(inside, outside);
    await assert.rejects(jexec("one", "/bin/sh", "-c", "exit 43"), /ended with 43/);
    await assert.rejects(
      jexec("one", "/bin/nothing"),
      /ended with 1: jexec: execvp: \/bin\/nothing: No such file/,
    );
    await assert.rejects(jexec("-U", "nobody-there", "one", "true"), /jexec: nobody-there: no such user/);
    await assert.rejects(jexec("two", "true"), /ended with 1: jexec: jail "two" not found/);
    await assert.rejects(jexec("4200", "true"), /ended with 1: jexec: jail 4200 not found/);
    await jail("-q", "-f", conf, "-r", "one");
  });

  it("hand on what they were given beside the three streams, and signals as they were sent", async () => {
    await jail("-q", "-f", conf, "-c", "one");
    const program = host.settings.programs.jexec;
    const sh = (script: string) => host.run("/bin/sh", "-c", script, program);
    assert.equal(await sh('echo kept | "$0" -l one /bin/sh -c "cat <&3" 3<&0 < /dev/null'), "kept\n");
    // The parent in the jail counts the signals it receives. Its child prints a line for a signal of its own.
    const counting = `
      n=0; trap "n=\\$((n + 1))" USR1
      (trap "echo child" USR1; touch /tmp/ready; while [ ! -e /tmp/over ]; do sleep 0.02; done) &
      until [ -e /tmp/ready ]; do sleep 0.02; done; touch /tmp/both
      until [ -e /tmp/over ]; do sleep 0.02; done; echo $n; wait; rm /tmp/ready /tmp/over /tmp/both`;
    const send = async (target: string) =>
      sh(`
        setsid "$0" -l one /bin/sh -c '${counting}' > ${host.directory}/told &
        pid=$!
        until "$0" one /bin/test -e /tmp/both; do sleep 0.02; done
        kill -s USR1 -- ${target} 2>&1; "$0" one /bin/sleep 0.3; "$0" one /usr/bin/touch /tmp/over
        wait; cat ${host.directory}/told`);
    assert.equal(await send("$pid"), "1\n");
    assert.equal(await send("-$pid"), "child\n1\n");
    const ended = await sh(
      `"$0" -l -U user one /bin/sleep 4242 & pid=$!; sleep 0.3; kill -9 $pid; wait $pid; echo $?
       until ! "$0" one /usr/bin/pgrep -f 'sleep 4242'; do sleep 0.02; done`,
    );
    assert.equal(ended.split("\n")[0], "137");
    await jail("-q", "-f", conf, "-r", "one");
  });

  it("leave nothing of a jail running, whoever left the group and the parent", async () => {
    await jail("-q", "-f", conf, "-c", "one");
    const marker = "sleep 4242";
    await jexec(
      "one",
      "/bin/sh",
      "-c",
      `setsid ${marker} < /dev/null > /dev/null 2>&1 & (${marker} > /dev/null 2>&1 &) `,
    );
    const count = () =>
      host.run("/bin/sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 424[2]' || true");
    assert.notEqual((await count()).trim(), "0");
    await removeUsed("one");
    // With -q it prints nothing for a missing jail.
    await assert.rejects(jail("-q", "-f", conf, "-r", "one"), /ended with 1: $/);
    assert.equal((await count()).trim(), "0");
  });

  it("keep rules by the name of a jail that need not be there, and tell what each uses in the order asked", async () => {
    const rctl = (...words: readonly string[]) => host.run(host.settings.programs.rctl, ...words);
    assert.equal(await rctl("-a", "jail:one:memoryuse:deny=64M", "jail:one:maxproc:deny=20"), "");
    await rctl("-a", "jail:one:maxproc:deny=30");
    assert.equal(await rctl(), "jail:one:memoryuse:deny=67108864\njail:one:maxproc:deny=30\n");
    await jail("-q", "-f", conf, "-c", "one");
    if (host.limits.includes("processes")) {
      const script =
        "for i in 1 2 3 4 5 6 7 8; do for j in 1 2 3 4 5 6 7 8; do sleep 300 > /dev/null 2>&1 & done; done";
      await assert.rejects(jexec("one", "/bin/sh", "-c", script), /[Cc]annot fork/);
    }
    await jexec("one", "/bin/sh", "-c", "sleep 300 > /dev/null 2>&1 &").catch(() => undefined);
    const told = await rctl("-u", "jail:none", "jail:one");
    assert.deepEqual(told.match(/^cputime=\d+$/gm)?.length, 2);
    assert.match(told.slice(told.lastIndexOf("cputime=")), /^memoryuse=\d+\n(.*\n)*pcpu=\d+\n/m);
    await removeUsed("one");
    assert.equal(await rctl("-r", "jail:one"), "");
    assert.equal(await rctl(), "");
    await assert.rejects(
      rctl("-r", "jail:one"),
      /ended with 1: rctl: failed to remove rule 'jail:one': No such process/,
    );
    await assert.rejects(rctl("-a", "jail:one:maxproc"), /ended with 1: rctl: malformed rule/);
  });

  it("stop and signal what runs in a jail, and tell the state of it", async () => {
    const { pkill, ps } = host.settings.programs;
    await jail("-q", "-f", conf, "-c", "one");
    await assert.rejects(host.run(pkill, "-STOP", "-j", "one"), /ended with 1: $/);
    await assert.rejects(host.run(ps, "-J", "one", "-o", "state="), /ended with 1: $/);
    const ended = assert.rejects(jexec("one", "/bin/sh", "-c", "sleep 300; true"), /ended with/);
    const states = async () => (await host.run(ps, "-J", "one", "-o", "state=")).trim().split(/\s+/);
    await eventually("the shell and its child", async () => (await states()).length === 2);
    await host.run(pkill, "-STOP", "-j", "one");
    await eventually("both stand still", async () => (await states()).join("") === "TJTJ");
    await host.run(pkill, "-CONT", "-j", "one");
    await eventually("both go on", async () => !(await states()).includes("TJ"));
    await host.run(pkill, "-KILL", "-j", "one");
    await ended;
    await eventually("nobody is left", async () => (await states().catch(() => [])).length === 0);
    await jail("-q", "-f", conf, "-r", "one");
    await assert.rejects(host.run(ps, "-J", "one", "-o", "state="), /ps: Invalid jail id: one/);
    await assert.rejects(
      host.run(pkill, "-STOP", "-j", "one"),
      /ended with 2: pkill: Invalid jail ID or name `one'/,
    );
    await assert.rejects(host.run(pkill, "-STOP"), /ended with 2: usage: pkill/);
  });

  it("unmount what is in use, and list mounts as fstab(5) has them", async () => {
    await jail("-q", "-f", conf, "-c", "one");
    const asleep = assert.rejects(jexec("-d", "/usr", "one", "/bin/sh", "-c", "sleep 300; true"));
    assert.match(await mount(), new RegExp(`^\\S+\t${root}/dev\t\\S+\trw\t0 0$`, "m"));
    await host.run(host.settings.programs.umount, "-f", join(root, "usr"));
    assert.doesNotMatch(await mount(), new RegExp(`${root}/usr`));
    await assert.rejects(
      host.run(host.settings.programs.umount, "-f", join(root, "usr")),
      /ended with 1: umount: \S+\/usr: not a file system root directory/,
    );
    await removeUsed("one", `mount: ${root}/usr: not a mount point`);
    await asleep;
    await assert.rejects(host.run(host.settings.programs.umount), /ended with 1: usage: umount/);
    await assert.rejects(host.run(host.settings.programs.mount), /ended with 1: usage: mount/);
  });

  it("know what of sysctl(8) and devfs(8) a host was given, and what the kernel lets jails have", async () => {
    const { devfs, sysctl } = host.settings.programs;
    assert.equal(await host.run(sysctl, "-n", "net.inet.ip.forwarding"), "1\n");
    await assert.rejects(host.run(sysctl, "-n", "net.none"), /ended with 1: sysctl: unknown oid 'net.none'/);
    const listed = (await host.run(sysctl, "-N", "security.jail.param")).trim().split("\n");
    assert.ok(listed.includes("security.jail.param.allow.extattr"));
    assert.match(await host.run(devfs, "rule", "-s", "200", "show"), /^100 include 1$/m);
    assert.equal(await host.run(devfs, "rule", "-s", "7", "show"), "");
    await assert.rejects(host.run(devfs, "rule", "show"), /ended with 1: usage: devfs/);
  });

  it("know which packages a host has", async () => {
    const { pkg } = host.settings.programs;
    await assert.rejects(host.run(pkg, "-N"), /ended with 1: pkg: pkg is not installed/);
    await writeFile(join(host.directory, "state", "host-packages"), "git\nnode24\n");
    assert.equal(await host.run(pkg, "-N"), "");
    assert.equal(await host.run(pkg, "query", "%n"), "git\nnode24\n");
  });

  it("have one PID space: same ids, parents and groups inside and outside, and nobody inside finds others", async () => {
    await using one = await openFreebsdHost({ userland: "freebsd" });
    const backend = one.backend();
    const spec = { id: "one", template: "base", limits: {}, allowInternetAccess: false };
    const sandbox = await backend.provision(spec, new AbortController().signal);
    const script = "sleep 4242 & echo $$ $! $PPID; wait; wait";
    const env = { PATH: "/bin:/usr/bin" };
    const started = await sandbox.spawn({ path: "/bin/sh", args: ["-c", script], env, input: "none" });
    const output = started.output[Symbol.asyncIterator]();
    const said = Buffer.from((await output.next()).value?.data ?? []).toString();
    const [own = "", child = "", parent = ""] = said.trim().split(" ");
    assert.equal(Number(own), started.pid);
    const shown = async (pid: string) =>
      (await one.run("/bin/ps", "-o", "ppid=,pgid=,args=", "-p", pid)).trim().split(/\s+/);
    assert.deepEqual((await shown(own)).slice(0, 2), [parent, own]);
    assert.deepEqual(await shown(child), [own, own, "sleep", "4242"]);
    assert.match((await shown(parent)).join(" "), /coppice-agent listen 3 \S*jexec e2b-one/);
    const { jail, jexec: enter, pkill, ps } = one.settings.programs;
    const find = `for pid; do kill -0 $pid && echo "signals $pid"; [ -e /proc/$pid ] && echo "sees $pid"; done; true`;
    const found = await one.run(
      enter,
      "e2b-one",
      "/bin/sh",
      "-c",
      find,
      "sh",
      parent,
      `-${parent}`,
      "1",
      child,
    );
    assert.equal(found, `signals ${child}\nsees ${child}\n`);
    // All but the sender: what is outside lives on.
    await one.run(enter, "e2b-one", "/bin/sh", "-c", "kill -WINCH -1");
    const states = async () => (await one.run(ps, "-J", "e2b-one", "-o", "state=")).trim().split("\n");
    // The agent inside, the shell and its child.
    assert.equal((await states()).length, 3);
    await sandbox.pausing?.pause();
    assert.deepEqual(await states(), ["TJ", "TJ", "TJ"]);
    await sandbox.pausing?.resume();
    // An orphan has the nearest reaper for its parent, which is the agent that started its parent.
    await one.run("/bin/kill", "-KILL", own);
    assert.deepEqual(await started.exit, { signal: "SIGKILL" });
    assert.equal((await shown(child))[0], parent);
    await one.run(pkill, "-KILL", "-j", "e2b-one");
    assert.equal(await sandbox.lost, "backend lost");
    await sandbox.destroy();
    await assert.rejects(one.run(jail, "-q", "-r", "e2b-one"), /ended with 1/);
    assert.deepEqual(await one.leaks(), []);
    await backend.close();
  });

  it("say in their heads which manual and which source they follow, and what they leave out", async () => {
    for (const name of await readdir(FREEBSD_SOURCES)) {
      const text = await readFile(join(FREEBSD_SOURCES, name), "utf8");
      const program = name.replace(/\..*/, "");
      // zfs(8) is the real program; the other programs only make the host.
      if (!(program in host.settings.programs) || program === "zfs") continue;
      assert.match(text, /(Source: |after |\(sbin\/)\S*\/?\S+\.c\b/, name);
      assert.match(text, /Not (here|done here): /, name);
      const [head = ""] = text.split(/\n(?!#|\/\/|\s*$|"""|  )/);
      assert.match(head, new RegExp(`Stands in for ${program}\\([18]\\) [^]*manuals?\\b`), name);
    }
  });
});
