import assert from "node:assert/strict";
import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { newId } from "../../harness/freebsd/jail-faults.js";

async function asRoot(sandbox: Sandbox, script: string): Promise<void> {
  const env = { PATH: "/usr/bin:/bin:/usr/sbin:/sbin" };
  const command = { path: "/bin/sh", args: ["-ec", script], env, user: "root", input: "none" as const };
  const started = await sandbox.spawn(command);
  const output: Uint8Array[] = [];
  for await (const { data } of started.output) output.push(data);
  assert.deepEqual(await started.exit, { code: 0 }, Buffer.concat(output).toString());
}

/** Moves the parents of mount points away, and puts links to directories of the host in their place. */
async function deceive(host: FreebsdHost, sandbox: Sandbox): Promise<string> {
  const bait = join(host.directory, "bait");
  await mkdir(join(bait, "data"), { recursive: true });
  await mkdir(join(bait, "agent"), { recursive: true });
  await asRoot(sandbox, `for each in mnt opt; do mv /$each /moved-$each; ln -s ${bait} /$each; done`);
  return bait;
}

describe(
  "a guest that moves the mount points of its jail",
  { skip: reasonWithoutFreebsdHost() ?? false },
  () => {
    for (const isStopped of [false, true]) {
      it(`gets nothing of the host mounted, and leaves nothing ${isStopped ? "after a stop" : "at its end"}`, async () => {
        await using host = await openFreebsdHost();
        const backend = host.backend();
        await backend.recover();
        const volume = newId();
        await backend.volumes.make({ id: volume, sizeMiB: 64 });
        const mounts = [{ volume, path: "/mnt/data", readOnly: false }];
        const spec = { id: newId(), template: "base", limits: {}, allowInternetAccess: false, mounts };
        const sandbox = await backend.provision(spec, new AbortController().signal);
        const bait = await deceive(host, sandbox);
        const before = await host.run("/bin/cat", "/proc/self/mountinfo");
        if (isStopped) {
          await sandbox.stopping?.stop();
          await assert.rejects(async () => sandbox.stopping?.start(spec, new AbortController().signal));
        }
        await sandbox.destroy();
        for (const name of ["data", "agent"]) assert.deepEqual(await readdir(join(bait, name)), []);
        assert.doesNotMatch(await host.run("/bin/cat", "/proc/self/mountinfo"), /\/bait\//, before);
        await backend.volumes.remove(volume);
        assert.deepEqual(await host.leaks(), []);
        await backend.close();
      });
    }
  },
);
