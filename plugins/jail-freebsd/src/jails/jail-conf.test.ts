import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { jailConf } from "./jail-conf.js";

const plain = {
  name: "e2b-abc",
  hostname: "abc",
  root: "/var/db/coppice/jails/roots/e2b-abc",
  devfsRuleset: 200,
  procfs: false,
  sysvipc: false,
  mounts: [
    { source: "/usr", target: "/usr", readOnly: true },
    { source: "/volumes/volume-x", target: "/data", readOnly: false, isShared: true },
  ],
  known: new Set<string>(),
};

describe("the jail.conf of a sandbox", () => {
  it("denies a hostile tenant everything that a jail can do without", () => {
    assert.deepEqual(jailConf(plain).split("\n"), [
      "e2b-abc {",
      '  path = "/var/db/coppice/jails/roots/e2b-abc";',
      '  host.hostname = "abc";',
      '  host.hostuuid = "ba7816bf-8f01-8fea-8141-40de5dae2223";',
      "  persist;",
      "  vnet;",
      "  exec.clean;",
      '  exec.timeout = "20";',
      '  stop.timeout = "0";',
      '  mount += "/usr /var/db/coppice/jails/roots/e2b-abc/usr nullfs ro 0 0";',
      '  mount += "/volumes/volume-x /var/db/coppice/jails/roots/e2b-abc/data nullfs rw,nosuid 0 0";',
      "  mount.devfs;",
      '  devfs_ruleset = "200";',
      '  enforce_statfs = "2";',
      '  children.max = "0";',
      '  securelevel = "3";',
      "  allow.nosysvipc;",
      "  allow.noset_hostname;",
      "  allow.noraw_sockets;",
      "  allow.nomount;",
      "  allow.nochflags;",
      "  allow.nomlock;",
      "  allow.noread_msgbuf;",
      "  allow.nosocket_af;",
      "  allow.noquotas;",
      "  allow.nounprivileged_proc_debug;",
      "}",
      "",
    ]);
  });

  it("has what the operator allows, and denies the parameters of newer kernels", () => {
    assert.ok(jailConf({ ...plain, procfs: true }).includes("  mount.procfs;\n"));
    const shared = ["sysvmsg", "sysvsem", "sysvshm"].map((name) => `  ${name} = "new";\n`).join("");
    const withIpc = jailConf({ ...plain, sysvipc: true });
    assert.ok(withIpc.includes(shared), withIpc);
    assert.doesNotMatch(withIpc, /nosysvipc/);
    for (const name of [
      "extattr",
      "adjtime",
      "settime",
      "routing",
      "setaudit",
      "unprivileged_parent_tampering",
    ]) {
      assert.ok(!jailConf(plain).includes(name), name);
      const text = jailConf({ ...plain, known: new Set([`allow.${name}`]) });
      assert.ok(text.includes(`  allow.no${name};\n`), text);
    }
  });

  it("refuses characters that could end a value, in every place", () => {
    const hostile = ['"', "'", "\\", "\n", "\0", "$x", "${x}", ";", "}", "#", " ", "\t", "`id`", "é", ""];
    for (const each of hostile) {
      const value = each === "" ? "" : `/a${each}b`;
      const mount = plain.mounts[0];
      assert.ok(mount);
      for (const changed of [
        { name: value },
        { hostname: value },
        { root: value },
        { mounts: [{ ...mount, source: value }] },
        ...(each === "" ? [] : [{ mounts: [{ ...mount, target: value }] }]),
      ]) {
        assert.throws(() => jailConf({ ...plain, ...changed }), /cannot be part of a jail\.conf/);
      }
    }
  });
});
