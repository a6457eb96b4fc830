// Tests on a host without network configuration, run in a network namespace by `egress.test.ts`.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, it } from "node:test";
import type { Logger } from "@coppice/core";
import { Egress } from "../network/egress.js";
import { launcherBinary } from "../launcher/host-programs.js";
import { Launcher } from "../launcher/launcher.js";

const FORWARDING = "/proc/sys/net/ipv4/ip_forward";
const IN_USE = true;
const log = {} as Logger;
let directory: string;
let launcher: Launcher;

before(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-forwarding-"));
  launcher = new Launcher(await launcherBinary(directory));
});
after(async () => {
  await launcher.close();
  await rm(directory, { recursive: true });
});

async function open(digest: string): Promise<Egress> {
  const settings = { range: "10.213.0.0/16", blocked: ["10.0.0.0/8"], connections: 64 };
  const egress = new Egress({ launcher, settings, digest, uplink: undefined, log });
  await egress.open();
  return egress;
}

async function host(): Promise<{ readonly forwards: string; readonly tables: string }> {
  const { output } = await launcher.run(["nft", "list", "tables"]);
  return { forwards: (await readFile(FORWARDING, "utf8")).trim(), tables: output };
}

it("forwarding that a killed server turned on is turned off by the last one that uses it", async () => {
  await writeFile(FORWARDING, "0");
  await open("00000001");
  assert.equal((await host()).forwards, "1");
  // The server above is gone without closing.
  const again = await open("00000001");
  const other = await open("00000002");
  await again.close(!IN_USE);
  assert.equal((await host()).forwards, "1");
  await other.close(IN_USE);
  assert.equal((await host()).forwards, "1");
  await other.close(!IN_USE);
  assert.deepEqual(await host(), { forwards: "0", tables: "" });
});

it("forwarding that the host had before stays", async () => {
  await writeFile(FORWARDING, "1");
  const egress = await open("00000001");
  await egress.close(!IN_USE);
  assert.deepEqual(await host(), { forwards: "1", tables: "" });
});
