import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import {
  type FreebsdHost,
  openFreebsdHost,
  OUTSIDE,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";

const skip = reasonWithoutFreebsdHost() ?? false;
const HARDWARE = "02:c0:0a:4e:00:0a";
const [ONE, OTHER] = OUTSIDE.addresses;
const REACH = `
import socket, sys
connection = socket.socket()
connection.settimeout(1)
try:
    connection.connect((sys.argv[1], ${OUTSIDE.port}))
    connection.sendall(b"x")
    print("reached" if connection.recv(1) == b"x" else "closed")
except OSError as error:
    print(type(error).__name__)
`;

describe("the stand-ins for the network of FreeBSD", { skip }, () => {
  let host: FreebsdHost;
  const run = (program: keyof FreebsdHost["settings"]["programs"], ...words: readonly string[]) =>
    host.run(host.settings.programs[program], ...words);
  const reach = async (address: string) =>
    (await run("jexec", "one", "/usr/bin/python3", "-c", REACH, address)).trim();
  const load = async (rules: string) => {
    const file = join(host.directory, "rules");
    await writeFile(file, rules);
    return host.run(
      "/bin/sh",
      "-c",
      `exec ${host.settings.programs.pfctl} -q -a coppice/epair7a -f - < ${file}`,
    );
  };
  const pass = "pass in quick on coppicenet0 inet from 10.78.0.10 to any keep state (if-bound, max 9)\n";

  before(async () => {
    host = await openFreebsdHost({ isConnected: true });
    await run("zfs", "clone", "coppice/jails/_template@base", "coppice/jails/one");
    const root = join(host.directory, "jails/one");
    const conf = join(host.directory, "one.conf");
    const mounts = `mount += "/usr ${root}/usr nullfs ro 0 0"; mount.devfs; mount.procfs;`;
    await writeFile(conf, `one { path = "${root}"; stop.timeout = 0; vnet; persist; ${mounts} }`);
    await run("jail", "-q", "-f", conf, "-c", "one");
  });
  after(() => host[Symbol.asyncDispose]());

  it("make an epair, move its end into a jail, and lead to it what the bridge has an entry for", async () => {
    assert.equal(await run("ifconfig", "epair7", "create"), "epair7a\n");
    await assert.rejects(run("ifconfig", "epair7", "create"), /interface epair7 already exists/);
    await run("ifconfig", "epair7b", "ether", HARDWARE);
    await run("ifconfig", "epair7b", "vnet", "one");
    await assert.rejects(run("ifconfig", "epair7b", "vnet", "one"), /interface epair7b does not exist/);
    await run("ifconfig", "-j", "one", "epair7b", "inet", "10.78.0.10/20", "up");
    await run("ifconfig", "epair7a", "group", "mine_", "description", "one", "up");
    assert.equal(await run("ifconfig", "-g", "mine_"), "epair7a\n");
    const shown = /^epair7a: flags=.*\n\tdescription: one\n\tgroups: epair mine_\n/m;
    assert.match(await run("ifconfig", "-a"), shown);
    await assert.rejects(
      run("arp", "-S", "10.78.0.10", HARDWARE),
      /arp: set 10.78.0.10: No such file or directory/,
    );
    const member = [
      "addm",
      "epair7a",
      "private",
      "epair7a",
      "-learn",
      "epair7a",
      "static",
      "epair7a",
      HARDWARE,
    ];
    await run("ifconfig", "coppicenet0", ...member);
    await assert.rejects(run("ifconfig", "coppicenet0", ...member), /BRDGADD epair7a: File exists/);
    await run("arp", "-S", "10.78.0.10", HARDWARE);
    await run("route", "-j", "one", "-n", "add", "default", "10.78.0.1");
    await assert.rejects(run("route", "-j", "one", "-n", "add", "default", "10.78.0.1"), /File exists/);
    assert.match(await run("ifconfig", "coppicenet0"), /inet 10\.78\.0\.1 netmask/);
  });

  it("filter what comes from an epair by its rules and those of the bridge, and nothing passes without any", async () => {
    assert.equal(await run("pfctl", "-a", "coppice", "-s", "Anchors"), "");
    await load("pass in quick on epair7a inet all no state\n");
    assert.equal(await run("pfctl", "-a", "coppice", "-s", "Anchors"), "  coppice/epair7a\n");
    assert.notEqual(await reach(ONE), "reached");
    const own = "pass in quick on epair7a inet all no state\n";
    await load(`block drop in quick on epair7a inet from ! 10.78.0.11 to any\n${own}${pass}`);
    assert.notEqual(await reach(ONE), "reached");
    const deny = `table <denied> const { ${ONE}/32, ${ONE} }\n`;
    const block = "block return in quick on coppicenet0 inet from 10.78.0.10 to <denied>\n";
    await load(deny + own + block + pass);
    assert.deepEqual([await reach(ONE), await reach(OTHER)], ["ConnectionRefusedError", "reached"]);
    await load(`${own}block return in quick on coppicenet0 inet from 10.78.0.10 to (self)\n${pass}`);
    assert.equal(await reach("203.0.113.1"), "ConnectionRefusedError");
    assert.equal(await reach(ONE), "reached");
  });

  it("load all rules of a file or none, and say as pfctl(8) does where it cannot be read", async () => {
    const before = await run("pfctl", "-a", "coppice/epair7a", "-s", "rules");
    for (const wrong of [
      "pass in quick on\n",
      "table <a> const { x }\n",
      `${pass}block everything\n`,
      "pass in quick on coppicenet0 inet from 10.78.0.10 to <none>\n",
    ]) {
      await assert.rejects(load(wrong), /stdin:\d+: syntax error\npfctl: Syntax error in config file/);
    }
    assert.equal(await run("pfctl", "-a", "coppice/epair7a", "-s", "rules"), before);
  });

  it("keep a state until it is killed, whatever becomes of the rules that made it", async () => {
    const states = () => run("pfctl", "-i", "coppicenet0", "-s", "states");
    assert.match(
      await states(),
      new RegExp(`^coppicenet0 tcp ${ONE}:${OUTSIDE.port} <- 10.78.0.10:\\d+ +ESTABLISHED:ESTABLISHED$`, "m"),
    );
    await load("block drop out quick on coppicenet0 inet from any to 10.78.0.10\n");
    assert.match(await states(), new RegExp(ONE));
    await run("pfctl", "-q", "-M", "-i", "coppicenet0", "-k", "10.78.0.10", "-k", ONE);
    assert.doesNotMatch(await states(), new RegExp(ONE));
    assert.match(await states(), new RegExp(OTHER));
    await run("pfctl", "-q", "-M", "-i", "coppicenet0", "-k", "10.78.0.10");
    assert.equal(await states(), "");
  });

  it("remove all of it, and say what is not there", async () => {
    await load(`table <held> const { 192.0.2.0/24 }\n${pass}`);
    await load("");
    await load("");
    // Its table holds it until the purge.
    assert.match(await run("pfctl", "-a", "coppice", "-s", "Anchors"), /coppice\/epair7a/);
    const isGone = async () => (await run("pfctl", "-a", "coppice", "-s", "Anchors")) === "";
    await eventually("the anchor is gone", isGone);
    const flush = () => run("pfctl", "-q", "-a", "coppice/epair7a", "-F", "all");
    await assert.rejects(flush(), /ended with 1: pfctl: Anchor does not exist\./);
    await load(pass);
    await assert.rejects(flush(), /pfctl: Anchor does not exist\./);
    assert.equal(await run("pfctl", "-a", "coppice/epair7a", "-s", "rules"), "");
    await run("arp", "-d", "10.78.0.10");
    await assert.rejects(run("arp", "-d", "10.78.0.10"), /arp: delete 10.78.0.10: No such file or directory/);
    await run("jail", "-q", "-R", "one");
    assert.match(await run("ifconfig", "-a"), /^epair7b: flags/m);
    await run("ifconfig", "epair7a", "destroy");
    assert.doesNotMatch(await run("ifconfig", "-a"), /^epair7/m);
    await assert.rejects(run("ifconfig", "epair7a", "destroy"), /interface epair7a does not exist/);
    assert.equal(await run("ifconfig", "-g", "mine_"), "");
  });
});
