import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { chmod, mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import type { Logger } from "@coppice/core";
import type { Sandbox, SandboxBackend } from "@coppice/core/backend";
import { JailBackend, type JailSettings } from "@coppice/plugin-jail-freebsd";
import { type FreebsdHost, openFreebsdHost, reasonWithoutFreebsdHost } from "../harness/freebsd-host.js";

const silent = { debug: () => undefined, info: () => undefined, warn: () => undefined } as unknown as Logger;
const skip = reasonWithoutFreebsdHost() ?? false;
/** More commands than a sandbox takes from its making to its end. */
const MOST_COMMANDS = 60;
const AT_ONCE = 4;
/** Of each of those; COPPICE_TEST_CYCLES is of all together. */
const CYCLES_EACH = Math.ceil(Number(process.env["COPPICE_TEST_CYCLES"] ?? 20) / AT_ONCE);

async function make(backend: SandboxBackend): Promise<Sandbox> {
  const id = `test${randomBytes(8).toString("hex")}`;
  const spec = { id, template: "base", limits: {}, allowInternetAccess: true };
  return backend.provision(spec, new AbortController().signal);
}

void describe("jail-freebsd, on a host that fails", { skip }, () => {
  let host: FreebsdHost;
  let failing: JailSettings;
  let countdown: string;

  /** From the command of that number on, every one fails without having done anything. */
  const failFrom = (number: number) => writeFile(countdown, "x".repeat(number));
  const heal = () => rm(countdown, { force: true });
  const datasets = async () =>
    host.run(
      host.settings.programs.zfs,
      "list",
      "-H",
      "-o",
      "name",
      "-t",
      "filesystem,snapshot",
      "-r",
      "coppice",
    );

  before(async () => {
    host = await openFreebsdHost({ isConnected: true });
    countdown = join(host.directory, "countdown");
    const bin = join(host.directory, "failing");
    await mkdir(bin);
    const programs: Record<string, string> = {};
    for (const [name, path] of Object.entries(host.settings.programs)) {
      programs[name] = join(bin, name);
      const script = `if [ -e ${countdown} ]; then
  left=$(cat ${countdown})
  [ -n "$left" ] || { echo "${name}: injected" >&2; exit 1; }
  printf %s "\${left#x}" > ${countdown}
fi
exec ${path} "$@"`;
      await writeFile(join(bin, name), `#!/bin/sh\n${script}\n`);
      await chmod(join(bin, name), 0o755);
    }
    failing = { ...host.settings, programs: { ...host.settings.programs, ...programs } };
  });
  after(() => host[Symbol.asyncDispose]());

  it("leaves nothing after a restart, wherever between two commands it stopped", async (context) => {
    const foreign = [
      "-o",
      "coppice:owner=somebody-else",
      "coppice/jails/_template@base",
      "coppice/jails/e2b-foreign",
    ];
    await host.run(host.settings.programs.zfs, "clone", ...foreign);
    const before = await datasets();
    let failures = 0;
    for (let number = 0; number < MOST_COMMANDS; number++) {
      const backend = new JailBackend(failing, silent);
      await failFrom(number);
      const outcome = await make(backend)
        .then(async (sandbox) => {
          await sandbox.networking?.restrict({ allowOut: [], denyOut: ["203.0.113.2"] });
          await sandbox.destroy();
        })
        .then(
          () => "done",
          () => "failed",
        );
      const isOver = (await readFile(countdown, "utf8")) !== "";
      await heal();
      await backend.close();
      const next = new JailBackend(failing, silent);
      for (const sandbox of await next.recover()) await sandbox.destroy();
      await next.close();
      assert.equal(await datasets(), before, `datasets differ when command ${number} failed`);
      const leaks = (await host.leaks()).filter((leak) => !leak.includes("e2b-foreign"));
      assert.deepEqual(leaks, [], `left behind when command ${number} failed`);
      if (outcome === "failed") failures++;
      if (isOver) break;
    }
    context.diagnostic(`${failures} places to fail at`);
    assert.ok(failures >= 8, `no more than ${failures} commands were made to fail`);
    await host.run(host.settings.programs.zfs, "unmount", "-f", "coppice/jails/e2b-foreign");
    await host.run(host.settings.programs.zfs, "rename", "coppice/jails/e2b-foreign", "coppice/foreign");
  });

  it("leaves nothing when sandboxes come and go side by side", async () => {
    const backend = new JailBackend(host.settings, silent);
    const cycle = async () => {
      for (let round = 0; round < CYCLES_EACH; round++) await (await make(backend)).destroy();
    };
    await Promise.all(Array.from({ length: AT_ONCE }, cycle));
    assert.deepEqual(await host.leaks(), []);
    await backend.close();
  });
});
