import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ALL_TRAFFIC } from "@coppice/core/backend";
import { AliasNetworks } from "./alias-networks.js";
import {
  openRecordingHost,
  reasonWithoutRecordingHost,
  type RecordingHost,
} from "../testing/recording-host.js";

const settings = {
  network: { kind: "alias", blocked: ["10.0.0.0/8"], resolvers: ["192.0.2.53"], connections: 100 },
};
const NO_RULES = { allowOut: [], denyOut: [] };

function networksOf({ addresses, host, settings: { network } }: RecordingHost): AliasNetworks {
  return new AliasNetworks({ host, settings: network, addresses, roots: "/d/roots" });
}

async function words(recording: RecordingHost): Promise<string[]> {
  return (await recording.calls()).map(({ program, args }) => [program, ...args].join(" "));
}

describe(
  "the network of jails in the stack of the host",
  { skip: reasonWithoutRecordingHost() ?? false },
  () => {
    it("loads the rules before the jail is created, and removes all remains", async () => {
      await using recording = await openRecordingHost(settings);
      const networks = networksOf(recording);
      const lease = await recording.addresses.take("one");
      assert.deepEqual(networks.stackOf(lease), { kind: "shared", link: "lo1", address: "10.78.0.10" });
      assert.ok(networks.needsAddress());
      await networks.prepare(lease, NO_RULES);
      await networks.connect();
      assert.deepEqual(await words(recording), ["pfctl -q -a coppice/alias10 -f -"]);
      await networks.disconnect(lease);
      assert.deepEqual(await words(recording), [
        "pfctl -q -k label -k coppice_alias10",
        "pfctl -q -a coppice/alias10 -f -",
        "ifconfig lo1 inet 10.78.0.10 -alias",
      ]);
    });

    it("matches outgoing packets by a tag, because their address is translated", async () => {
      await using recording = await openRecordingHost(settings);
      const networks = networksOf(recording);
      const rules = {
        allowOut: ["198.51.100.0/24", "2001:db8::1"],
        denyOut: [ALL_TRAFFIC, "203.0.113.9"],
      };
      await networks.prepare(await recording.addresses.take("one"), rules);
      const [load] = await recording.calls();
      const kept = 'keep state (if-bound, max 100) label "coppice_alias10"';
      assert.equal(
        load?.input,
        `table <resolvers> const { 192.0.2.53 }
table <blocked> const { 10.0.0.0/8 }
table <allowed> const { 198.51.100.0/24 }
nat on em0 inet from 10.78.0.10 to any tag coppice_alias10 -> (em0)
block return quick inet proto { tcp, udp } from 10.78.0.10 to 10.78.0.10 port { 22, 123, 514 }
pass quick inet from 10.78.0.10 to 10.78.0.10 no state
pass quick inet proto { tcp, udp } from 10.78.0.10 to <resolvers> port 53 ${kept}
block return quick inet from 10.78.0.10 to any
block drop in quick inet from any to 10.78.0.10
pass out quick on em0 inet proto { tcp, udp } from any to <resolvers> port 53 tagged coppice_alias10 ${kept}
block return out quick on em0 inet from any to <blocked> tagged coppice_alias10
pass out quick on em0 inet from any to <allowed> tagged coppice_alias10 ${kept}
block return out quick on em0 inet from any to any tagged coppice_alias10
pass out quick on em0 inet from any to any tagged coppice_alias10 ${kept}
block return out quick on em0 inet from any to any tagged coppice_alias10
`,
      );
    });

    it("cuts the connections that new rules do not leave open, one by one, and those alone", async () => {
      await using recording = await openRecordingHost(settings);
      const networks = networksOf(recording);
      const lease = await recording.addresses.take("one");
      let count = 0;
      const state = (destination: string, source = "10.78.0.10:4000") => {
        const ends = `em0 tcp 192.0.2.9:61000 (${source}) -> ${destination}       ESTABLISHED:ESTABLISHED`;
        const id = (0x60a1_0000 + count++).toString(16).padStart(16, "0");
        return `${ends}\n   age 00:00:01, expires in 23:59:59, 3:2 pkts, 1:1 bytes, rule 3\n   id: ${id} creatorid: 8d2e6f10\n`;
      };
      const listing = [
        state("192.0.2.53:53"),
        state("203.0.113.9:80"),
        state("198.51.100.7:443"),
        state("203.0.113.9:80", "10.78.0.11:4000"),
        "em0 tcp 192.0.2.9:22 <- 203.0.113.9:5000       ESTABLISHED:ESTABLISHED\n   id: 00000000ffffffff creatorid: 8d2e6f10\n",
        state("1.1.1.1:443"),
      ];
      await recording.answer("pfctl", listing.join(""));
      await networks.restrict(lease, { allowOut: ["198.51.100.7"], denyOut: [ALL_TRAFFIC] });
      assert.deepEqual((await words(recording)).slice(1), [
        "pfctl -i em0 -vv -s states",
        "pfctl -q -k id -k 0000000060a10001",
        "pfctl -q -k id -k 0000000060a10004",
      ]);
      const many = Array.from({ length: 40 }, (_, number) => state(`203.0.113.${number}:80`));
      await recording.answer("pfctl", many.join(""));
      await networks.restrict(lease, { allowOut: [], denyOut: [ALL_TRAFFIC] });
      assert.deepEqual((await words(recording)).slice(2), ["pfctl -q -k label -k coppice_alias10"]);
    });

    it("removes the aliases of its range and the anchors without a lease, and no others", async () => {
      await using recording = await openRecordingHost(settings);
      const networks = networksOf(recording);
      await recording.addresses.take("one");
      const aliases = ["10.78.0.10", "10.78.0.11", "10.78.0.1", "192.0.2.1"];
      const lines = aliases.map((address) => `\tinet ${address} netmask 0xffffffff\n`).join("");
      await recording.answer("ifconfig", `lo1: flags=8049<UP,LOOPBACK,RUNNING> metric 0 mtu 16384\n${lines}`);
      await recording.answer(
        "pfctl",
        "  coppice/alias10\n  coppice/alias12\n  coppice/epair10010a\n  other/alias13\n",
      );
      await networks.removeOthers();
      assert.deepEqual(await words(recording), [
        "ifconfig lo1",
        "ifconfig lo1 inet 10.78.0.11 -alias",
        "pfctl -a coppice -s Anchors",
        "pfctl -q -a coppice/alias12 -f -",
        "pfctl -q -a coppice/epair10010a -f -",
      ]);
    });

    it("lists the addresses of its range by jail", async () => {
      await using recording = await openRecordingHost(settings);
      await recording.answer(
        "jls",
        "e2b-one 10.78.0.10 /d/roots/e2b-one\nweb 192.0.2.1,192.0.2.2 /w\ne2b-two - /d/roots/e2b-two\n",
      );
      assert.deepEqual([...(await networksOf(recording).found())], [["e2b-one", "10.78.0.10"]]);
      assert.deepEqual(await words(recording), ["jls name ip4.addr path"]);
    });

    it("lists the problems of a host and the programs that a sandbox would reach, with fixes", async () => {
      await using recording = await openRecordingHost(settings);
      const networks = networksOf(recording);
      await recording.answer(
        "sockstat",
        `root     sshd         730 4   tcp4   *:22                  *:*
root     nginx        812 6   tcp46  *:8080                *:*
root     nginx        813 6   tcp46  *:8080                *:*
root     sshd         730 3   tcp6   *:2222                *:*
root     unbound      790 4   udp4   192.0.2.1:53          *:*
media    Plex Media   950 6   tcp4   *:32400               *:*
transmission transmissi65536 9   udp46  *:51413              *:*
`,
      );
      await recording.answer("pfctl", "all\nem0\nlo0 (skip)\nlo1 (skip)\n");
      const problems = await networks.problems();
      assert.deepEqual(
        problems.map(({ message }) => message),
        [
          "there is no interface em0 with an IPv4 address",
          "pf skips lo0: sandboxes reach the host, and each other, there",
          "pf skips lo1: sandboxes reach the host, and each other, there",
          "pf is not enabled",
          'pf\'s rules have no nat-anchor "coppice/*"',
          'pf\'s rules have no anchor "coppice/*"',
          "nginx listens at port 8080 of every address, those of sandboxes included",
          "Plex listens at port 32400 of every address, those of sandboxes included",
          "transmissi65536 listens at port 51413 of every address, those of sandboxes included",
        ],
      );
      assert.ok(problems.every(({ fix }) => fix !== ""));
      await recording.answer("ifconfig", "em0: flags=8843\n\tinet 192.0.2.9 netmask 0xffffff00\n");
      await recording.answer("sockstat", "");
      const rules = 'nat-anchor "coppice/*" all\nanchor "coppice/*" all\n';
      await recording.answer("pfctl", `Status: Enabled for 0 days\n${rules}em0\nlo0\nlo1\n`);
      assert.deepEqual(await networks.problems(), []);
    });
  },
);
