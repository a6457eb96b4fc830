import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import type { Sandbox, SandboxBackend } from "@coppice/core/backend";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { newId } from "../../harness/freebsd/jail-faults.js";
import { reachesOut } from "../../harness/freebsd/reaches-out.js";

const LEFT_OVER = fileURLToPath(new URL("../../../../scripts/freebsd-left-over.sh", import.meta.url));
const skip = reasonWithoutFreebsdHost() ?? false;

async function make(backend: SandboxBackend): Promise<Sandbox> {
  const spec = { id: newId(), template: "base", limits: {}, allowInternetAccess: true };
  return backend.provision(spec, new AbortController().signal);
}

/** Removes a jail and its dataset, and nothing else that belongs to it. */
async function takeAway(host: FreebsdHost, name: string): Promise<void> {
  const { programs } = host.settings;
  await host.run(programs.jail, "-q", "-R", name);
  const points = (await host.run(programs.mount, "-p")).split("\n").map((line) => line.split(" ")[1] ?? "");
  const below = points.filter((point) => point.includes(`/${name}/`)).toReversed();
  for (const point of below) await host.run(programs.umount, "-f", point);
  await host.run(programs.zfs, "unmount", "-f", `coppice/jails/${name}`);
  await host.run(programs.zfs, "destroy", `coppice/jails/${name}`);
}

describe("a sweep of jail-freebsd", { skip }, () => {
  it("removes a network whose dataset is gone, and nobody else's", async () => {
    await using host = await openFreebsdHost({ isConnected: true });
    const first = host.backend();
    await first.recover();
    const made = await make(first);
    const before = await host.leaks();
    const lost = await make(first);
    await first.close();
    await takeAway(host, `e2b-${lost.id}`);
    const left = (await host.leaks()).filter((leak) => !before.includes(leak));
    for (const kind of [/^anchor /, /epair/]) {
      assert.ok(
        left.some((leak) => kind.test(leak)),
        `there is no ${kind} to be removed: ${left.join("; ")}`,
      );
    }
    const backend = host.backend();
    const [kept] = await backend.recover();
    assert.deepEqual(await host.leaks(), before);
    assert.ok(
      kept?.id === made.id && (await reachesOut(kept)),
      "the sandbox of somebody else is not connected any more",
    );
    await kept.destroy();
    assert.deepEqual(await host.leaks(), []);
    await backend.close();
  });
});

describe("a guest that gives its interface the name of one of the host's", { skip }, () => {
  it("takes it along at its end, and leaves the host's alone", async () => {
    await using host = await openFreebsdHost({ isConnected: true });
    const backend = host.backend();
    await backend.recover();
    for (const end of ["stop", "destroy"] as const) {
      const sandbox = await make(backend);
      // On FreeBSD root of the sandbox may.
      const file = join(host.directory, "state", "jails", `e2b-${sandbox.id}`);
      const rename = `read -r _ init _ < ${file}; enter="/usr/bin/nsenter --net=/proc/$init/ns/net /sbin/ip link set epair1001"
        for number in 0 1; do $enter\${number}b down && $enter\${number}b name em0 && exit; done`;
      await host.run("/bin/sh", "-c", rename);
      if (end === "stop") await sandbox.stopping?.stop();
      await sandbox.destroy();
      assert.deepEqual(await host.leaks(), []);
    }
    const other = await make(backend);
    assert.ok(await reachesOut(other));
    await other.destroy();
    await backend.close();
  });
});

describe("the smoke test's look for remains", { skip }, () => {
  it("waits for anchors that tables of replaced rules hold, and names what stays", async () => {
    await using host = await openFreebsdHost({ isConnected: true, release: 15 });
    const backend = host.backend();
    const { directory, dataset, programs } = host.settings;
    /** Looks for remains at once after a script. @returns what it prints, and how it ends. */
    const look = (script: string, ...seconds: readonly string[]) =>
      host.run(
        "/usr/bin/env",
        `PATH=${join(host.directory, "bin")}:/usr/sbin:/usr/bin:/sbin:/bin`,
        "/bin/sh",
        "-c",
        `set -e; ${script}; set +e; /bin/sh "$@"; echo "ended with $?"`,
        "sh",
        LEFT_OVER,
        directory,
        dataset,
        ...seconds,
      );
    await backend.recover();
    const sandbox = await make(backend);
    const found = await look(":", "1");
    for (const kind of [
      "e2b-ID",
      `${dataset}/e2b-ID`,
      "  coppice/epair10010a",
      `${directory}/conf/e2b-ID.conf`,
    ]) {
      const line = kind.replace("ID", sandbox.id);
      assert.ok(found.split("\n").includes(line), `no ${line} in ${found}`);
    }
    assert.match(found, /ended with 1\n$/);
    await sandbox.destroy();
    await backend.close();
    const load = `${programs.pfctl} -q -a coppice/epair7a -f -`;
    const rules =
      "table <held> const { 192.0.2.0/24 }\\nblock drop in quick on epair7a inet from any to <held>\\n";
    assert.equal(await look(`printf '${rules}' | ${load}; : | ${load}`), "ended with 0\n");
  });
});
