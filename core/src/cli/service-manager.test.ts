import assert from "node:assert/strict";
import { chmod, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { createLogger } from "../observe/logger.js";
import { ServiceManager } from "./service-manager.js";

const log = createLogger("silent");

/** A stand-in for systemd's program: the messages themselves are proven under a real systemd. */
describe("a service manager", () => {
  let directory = "";
  const path = process.env["PATH"];

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-manager-"));
    const program = join(directory, "systemd-notify");
    await writeFile(program, `#!/bin/sh\necho "$NOTIFY_SOCKET $*" >>"${join(directory, "sent")}"\n`);
    await chmod(program, 0o755);
    process.env["PATH"] = `${directory}:${path}`;
  });
  after(async () => {
    process.env["PATH"] = path;
    await rm(directory, { recursive: true });
  });

  it("is told of the states in their order, and programs of the server do not have its variables", async () => {
    const env = {
      NOTIFY_SOCKET: "/run/notify",
      WATCHDOG_USEC: "60000000",
      WATCHDOG_PID: String(process.pid),
      KEPT: "1",
    };
    const manager = new ServiceManager(env);
    assert.deepEqual(env, { KEPT: "1" });
    const told = [
      manager.ready(log, "serving"),
      manager.reloading(),
      manager.ready(log, "serving"),
      manager.stopping(),
    ];
    await Promise.all(told);
    const ready = "/run/notify READY=1 STATUS=serving";
    const sent = [ready, "/run/notify RELOADING=1", ready, "/run/notify STOPPING=1"];
    assert.deepEqual((await readFile(join(directory, "sent"), "utf8")).trim().split("\n"), sent);
  });

  it("that asks for nothing is told nothing", async () => {
    await writeFile(join(directory, "sent"), "");
    await new ServiceManager({}).ready(log, "serving");
    assert.equal(await readFile(join(directory, "sent"), "utf8"), "");
  });
});
