import assert from "node:assert/strict";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import type { Logger } from "@coppice/core";
import type { SandboxSpec } from "@coppice/core/backend";
import { JailBackend } from "./jail-backend.js";
import { openRecordingHost, reasonWithoutRecordingHost } from "./testing/recording-host.js";
import { VnetNetworks } from "./vnet-networks.js";

const silent = { debug: () => undefined, info: () => undefined, warn: () => undefined } as unknown as Logger;
/** In every hostile string, so that it is found wherever it got. */
const MARK = "zqx";
/** What a shell, jail.conf(5), pf.conf(5) or zfs(8) would take for more than a letter. */
const HOSTILE = [
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

function* strings(): Generator<string> {
  for (const each of HOSTILE) yield* [`${MARK}${each}${MARK}`, `${each}${MARK}`, `${MARK}${each}`];
}

async function filesBelow(directory: string): Promise<string> {
  const names = await readdir(directory, { recursive: true, withFileTypes: true });
  const texts = names
    .filter((entry) => entry.isFile() && entry.name.includes(".conf"))
    .map((entry) => readFile(join(entry.parentPath, entry.name), "utf8"));
  return names.map(({ name }) => name).join("\n") + (await Promise.all(texts)).join("\n");
}

void describe("what a client sends", { skip: reasonWithoutRecordingHost() ?? false }, () => {
  void it("reaches no program, no jail.conf and no anchor of the host unless it is plain", async () => {
    await using recording = await openRecordingHost({ network: { kind: "vnet" } });
    const backend = new JailBackend(recording.settings, silent);
    const plain: SandboxSpec = { id: "abc", template: "base", limits: {}, allowInternetAccess: true };
    const attempt = (changed: Partial<SandboxSpec>) =>
      assert.rejects(backend.provision({ ...plain, ...changed }, new AbortController().signal));
    let count = 0;
    for (const text of strings()) {
      // Names of templates may have these.
      const isName = /^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(text);
      await attempt({ id: text });
      if (!isName) await attempt({ template: text });
      await attempt({ snapshot: text });
      await attempt({ egress: { allowOut: [text], denyOut: [] } });
      await attempt({ egress: { allowOut: [], denyOut: [text, "0.0.0.0/0"] } });
      await attempt({ egress: { allowOut: [`192.0.2.1${text}`], denyOut: [] } });
      count++;
    }
    assert.ok(count > 100);
    const seen = (await recording.calls()).map(({ args, input }) => [...args, input].join("\n"));
    assert.doesNotMatch(seen.join("\n"), new RegExp(MARK));
    assert.doesNotMatch(await filesBelow(recording.settings.directory), new RegExp(MARK));
    await backend.close();
  });

  void it("changes no rules when they are replaced by such", async () => {
    await using recording = await openRecordingHost({ network: { kind: "vnet" } });
    const networks = new VnetNetworks(recording.host, recording.settings.network, "0");
    const lease = networks.take();
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

  void it("does not run through a shell where it is an argument", async () => {
    await using recording = await openRecordingHost();
    const hostile = [...strings()].filter((text) => !text.includes("\0"));
    await recording.host.run("zfs", hostile);
    const [call] = await recording.calls();
    assert.deepEqual(call?.args, hostile);
  });
});
