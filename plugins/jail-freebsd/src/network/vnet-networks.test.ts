import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ALL_TRAFFIC } from "@coppice/core/backend";
import {
  openRecordingHost,
  reasonWithoutRecordingHost,
  type RecordingHost,
} from "../testing/recording-host.js";
import { VnetNetworks } from "./vnet-networks.js";

const settings = {
  network: { kind: "vnet", blocked: ["10.0.0.0/8"], resolvers: ["192.0.2.53"], connections: 100 },
};
const NO_RULES = { allowOut: [], denyOut: [] };

function networksOf({ addresses, host, settings: { network } }: RecordingHost): VnetNetworks {
  return new VnetNetworks({ host, settings: network, addresses, digest: "0123456789abcdef" });
}

async function words(recording: RecordingHost): Promise<string[]> {
  return (await recording.calls()).map(({ program, args }) => [program, ...args].join(" "));
}

describe("the network of jails", { skip: reasonWithoutRecordingHost() ?? false }, () => {
  it("loads the rules before it connects a jail, and binds the address on the bridge", async () => {
    await using recording = await openRecordingHost(settings);
    const networks = networksOf(recording);
    const lease = await recording.addresses.take("one");
    assert.equal(lease.address, "10.78.0.10");
    await networks.prepare(lease, NO_RULES);
    await networks.connect("e2b-one", lease);
    assert.deepEqual(await words(recording), [
      "pfctl -q -a coppice/epair10010a -f -",
      "ifconfig epair10010 create",
      "ifconfig epair10010b ether 02:c0:0a:4e:00:0a",
      "ifconfig epair10010b vnet e2b-one",
      "ifconfig -j e2b-one epair10010b inet 10.78.0.10/20 up",
      "ifconfig epair10010a group coppice_012345_ description e2b-one up",
      "ifconfig coppicenet0 addm epair10010a private epair10010a -learn epair10010a static epair10010a 02:c0:0a:4e:00:0a",
      "arp -S 10.78.0.10 02:c0:0a:4e:00:0a",
      "route -j e2b-one -n add default 10.78.0.1",
    ]);
    await networks.unplug(lease);
    await networks.disconnect(lease);
    assert.deepEqual(await words(recording), [
      "ifconfig epair10010a destroy",
      "pfctl -q -M -i coppicenet0 -k 10.78.0.10",
      "pfctl -q -a coppice/epair10010a -f -",
      "arp -d 10.78.0.10",
    ]);
  });

  it("loads the rules of a sandbox at once, in the order that decides, and blocks forged source addresses", async () => {
    await using recording = await openRecordingHost(settings);
    const networks = networksOf(recording);
    const lease = await recording.addresses.take("one");
    const rules = {
      allowOut: ["198.51.100.0/24", "2001:db8::1"],
      denyOut: [ALL_TRAFFIC, "203.0.113.9"],
    };
    await networks.restrict(lease, rules);
    const [load] = await recording.calls();
    assert.equal(
      load?.input,
      `table <resolvers> const { 192.0.2.53 }
table <blocked> const { 10.0.0.0/8 }
table <allowed> const { 198.51.100.0/24 }
block drop in quick on epair10010a inet6 all
block drop in quick on epair10010a inet from ! 10.78.0.10 to any
pass in quick on epair10010a inet all no state
pass in quick on coppicenet0 inet proto { tcp, udp } from 10.78.0.10 to <resolvers> port 53 keep state (if-bound, max 100)
block return in quick on coppicenet0 inet from 10.78.0.10 to (self)
block return in quick on coppicenet0 inet from 10.78.0.10 to <blocked>
pass in quick on coppicenet0 inet from 10.78.0.10 to <allowed> keep state (if-bound, max 100)
block return in quick on coppicenet0 inet from 10.78.0.10 to any
pass in quick on coppicenet0 inet from 10.78.0.10 to any keep state (if-bound, max 100)
block drop out quick on coppicenet0 inet from any to 10.78.0.10
`,
    );
  });

  it("cuts only the connections that new rules forbid", async () => {
    await using recording = await openRecordingHost(settings);
    const networks = networksOf(recording);
    const lease = await recording.addresses.take("one");
    const state = (destination: string, source = "10.78.0.10:4000") =>
      `coppicenet0 tcp ${destination} <- ${source}       ESTABLISHED:ESTABLISHED\n`;
    const open = ["192.0.2.53:53", "198.51.100.7:443", "9.9.9.9:443"];
    const closed = ["203.0.113.9:80", "203.0.113.9:81", "192.0.2.53:80", "10.1.2.3:22", "1.1.1.1"];
    const others = state("203.0.113.9:80", "10.78.0.11:4000") + "coppicenet0 tcp garbage\n";
    await recording.answer("pfctl", [...open, ...closed].map((each) => state(each)).join("") + others);
    const denyOut = ["203.0.113.0/24", "192.0.2.0/24", "1.1.1.1", "198.51.100.0/24"];
    await networks.restrict(lease, { allowOut: ["198.51.100.7"], denyOut });
    assert.deepEqual((await words(recording)).slice(1), [
      "pfctl -i coppicenet0 -s states",
      ...["203.0.113.9", "192.0.2.53", "10.1.2.3", "1.1.1.1"].map(
        (address) => `pfctl -q -M -i coppicenet0 -k 10.78.0.10 -k ${address}`,
      ),
    ]);
    const many = Array.from({ length: 40 }, (_, number) => state(`203.0.113.${number}:80`));
    await recording.answer("pfctl", many.join(""));
    await networks.restrict(lease, { allowOut: [], denyOut });
    assert.deepEqual((await words(recording)).slice(2), ["pfctl -q -M -i coppicenet0 -k 10.78.0.10"]);
  });

  it("removes its own epairs and anchors without a lease, and no others", async () => {
    await using recording = await openRecordingHost(settings);
    const networks = networksOf(recording);
    await recording.addresses.take("one");
    await recording.answer("ifconfig", "epair10010a\nepair10011a\n");
    await recording.answer("pfctl", "  coppice/epair10010a\n  coppice/epair10012a\n  ftp-proxy\n");
    await networks.removeOthers();
    assert.deepEqual(await words(recording), [
      "ifconfig -g coppice_012345_",
      "ifconfig epair10011a destroy",
      "pfctl -a coppice -s Anchors",
      "pfctl -q -a coppice/epair10012a -f -",
    ]);
  });

  it("lists its epairs by jail", async () => {
    await using recording = await openRecordingHost(settings);
    const networks = networksOf(recording);
    const link = (name: string, description: string, groups: string) =>
      `${name}: flags=8943<UP,BROADCAST> metric 0 mtu 1500\n\t${description}\n\tether 02:c0:0a:4e:00:0a\n\tgroups: ${groups}\n`;
    const links = [
      link("coppicenet0", "inet 10.78.0.1 netmask 0xfffff000 broadcast 10.78.15.255", "bridge"),
      link("epair10010a", "description: e2b-one", "epair coppice_012345_"),
      link("epair10011a", "description: e2b-two", "epair coppice_999999_"),
      link("epair10012a", "options=8<VLAN_MTU>", "epair coppice_012345_"),
      link("epair7a", "description: e2b-four", "epair coppice_012345_"),
    ];
    await recording.answer("ifconfig", links.join(""));
    assert.deepEqual([...(await networks.found())], [["e2b-one", "10.78.0.10"]]);
    assert.deepEqual(await words(recording), ["ifconfig -a"]);
  });

  it("lists the problems of a host with fixes", async () => {
    await using recording = await openRecordingHost(settings);
    const networks = networksOf(recording);
    const problems = await networks.problems();
    assert.deepEqual(
      problems.map(({ message }) => message),
      [
        "there is no bridge coppicenet0 with the address 10.78.0.1/20",
        "net.inet.ip.forwarding is not 1",
        "net.link.bridge.pfil_member is not 1",
        "net.link.bridge.pfil_local_phys is not 1",
        "pf is not enabled",
        'pf\'s rules have no anchor "coppice/*"',
      ],
    );
    assert.ok(problems.every(({ fix }) => fix !== ""));
    await recording.answer("ifconfig", "coppicenet0: flags=8843\n\tinet 10.78.0.1 netmask 0xfffff000\n");
    await recording.answer("sysctl", "1\n");
    await recording.answer("pfctl", 'Status: Enabled for 0 days\nanchor "coppice/*" all\n');
    assert.deepEqual(await networks.problems(), []);
    const theirs = "epair10010a: flags=8943\n\tgroups: epair coppice_999999_\n";
    const ours = "epair10011a: flags=8943\n\tgroups: epair coppice_012345_\n";
    await recording.answer("ifconfig", `coppicenet0: flags=8843\n\tinet 10.78.0.1 netmask\n${theirs}${ours}`);
    assert.deepEqual(
      (await networks.problems()).map(({ message }) => message),
      ["epair10010a belongs to another server"],
    );
  });
});
