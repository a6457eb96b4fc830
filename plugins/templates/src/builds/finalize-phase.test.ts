import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { BuildHost, WITHOUT_BUILDS } from "../testing/build-host.js";

/** 8080 is 1F90 in the kernel's list of sockets. */
const LISTENS = "until grep -q :1F90 /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done";
const SERVER = `trap "echo ended > ~/ended; exit" TERM; echo started; httpd -f -p 8080 & ${LISTENS}; touch ~/up; wait`;
const READY = "[ -f ~/up ]";

describe("the end of a build", { skip: WITHOUT_BUILDS, timeout: 240_000, concurrency: 1 }, () => {
  let host: BuildHost;
  before(async () => {
    host = await BuildHost.open({ builds: { readyTimeout: "3s" } });
  });
  after(() => host[Symbol.asyncDispose]());

  async function failureOf(startCommand: string, readyCommand?: string): Promise<string> {
    const { run } = host.start({ startCommand, readyCommand });
    const error = await run.then(
      () => new Error("it did not fail"),
      (failure: unknown) => failure as Error,
    );
    assert.deepEqual([error.name, Reflect.get(error, "step")], ["BuildFailure", "finalize"], error.stack);
    return error.message;
  }

  it("lists the packages of the image, whatever a program of its says", async () => {
    const { result } = await host.build({
      steps: [
        ["USER", "root"],
        [
          "RUN",
          "printf '#!/bin/sh\necho deb less 1.0; echo deb bash 5.2; echo; echo evil' > /usr/local/bin/dpkg-query",
        ],
        [
          "RUN",
          "chmod +x /usr/local/bin/dpkg-query; printf 'P:musl\nV:1.2\n' > /apk; mkdir -p /lib/apk/db; mv /apk /lib/apk/db/installed",
        ],
      ],
    });
    assert.deepEqual(host.contents.get(result.image), ["apk musl 1.2", "deb bash 5.2", "deb less 1.0"]);
  });

  it("warns of packages that are not those of the lock, or fails", async () => {
    const steps = [
      ["USER", "root"],
      [
        "RUN",
        "printf '#!/bin/sh\necho deb less 1.0; echo deb bash 5.2' > /usr/local/bin/dpkg-query; chmod +x /usr/local/bin/dpkg-query",
      ],
    ] as const;
    const lock = { contents: ["deb bash 5.1", "deb less 1.0"], severity: "warn" } as const;
    const { lines } = await host.build({ steps, lock });
    const text = "the packages differ from those of the lock file in 2 lines: -deb bash 5.1; +deb bash 5.2";
    assert.ok(lines.includes(text), lines.join("\n"));
    const wanted = { ...lock, severity: "error" } as const;
    const { run } = host.start({ steps, lock: wanted });
    await assert.rejects(run, { name: "BuildFailure", message: text, step: "finalize" });
    // What another lock allowed is not taken from the cache.
    const same = { ...wanted, contents: ["deb bash 5.2", "deb less 1.0"] };
    const allowed = await host.build({ steps, lock: same });
    assert.ok(!allowed.lines.some((line) => line.includes("differ")), allowed.lines.join("\n"));
    await assert.rejects(host.start({ steps, lock: wanted }).run, { message: text });
  });

  it("runs the start command until it is ready, ends it, and tells on which ports it listened", async () => {
    const { result, lines } = await host.build({
      steps: [
        ["ENV", "A", "1", "PATH", "/mine"],
        ["WORKDIR", "/app"],
        ["USER", "other"],
      ],
      startCommand: SERVER,
      readyCommand: READY,
    });
    assert.deepEqual(lines.slice(-6, -1), [
      "[finalize] Finalizing template build",
      `Running start command: ${SERVER}`,
      "[start] [stdout]: started",
      `Waiting for template to be ready: ${READY}`,
      "Template is ready",
    ]);
    assert.deepEqual(result.start, {
      command: SERVER,
      ready: READY,
      user: "other",
      workdir: "/app",
      environment: {
        OF_IMAGE: "yes",
        A: "1",
        PATH: "/mine:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
      },
      ports: [8080],
    });
    assert.equal(await host.run(result, "cd ~other; cat ended; echo up*"), "ended\nup\n");
    const again = await host.build({
      steps: [
        ["ENV", "A", "1", "PATH", "/mine"],
        ["WORKDIR", "/app"],
        ["USER", "other"],
      ],
      startCommand: SERVER,
      readyCommand: READY,
    });
    assert.deepEqual(again.result, result);
    assert.equal(again.lines.at(-2), "CACHED [finalize] Finalizing template build");
  });

  it("lets a start command end well, and waits for the ready command all the same", async () => {
    const { result, lines } = await host.build({
      startCommand: "echo once; touch ~/up",
      readyCommand: READY,
    });
    assert.deepEqual([result.start?.command, result.start?.ports], ["echo once; touch ~/up", []]);
    assert.ok(lines.includes("Template is ready"));
    const alone = await host.build({ readyCommand: "sleep 0" });
    assert.equal(alone.result.start, undefined);
    assert.deepEqual(alone.lines.slice(-3, -1), [
      "Waiting for template to be ready: sleep 0",
      "Template is ready",
    ]);
  });

  it("fails with E2B's words when the start command does, or it is not ready in time", async () => {
    assert.equal(
      await failureOf("exit 5", "sleep 60"),
      "start command failed: error running start command: exit status 5",
    );
    assert.equal(
      await failureOf("sleep 60", "false"),
      "ready command failed: ready command timed out after 3s",
    );
    assert.equal(
      await failureOf("sleep 60", "sleep 60"),
      "ready command failed: ready command timed out after 3s",
    );
    assert.deepEqual(await host.leftovers(), []);
  });

  it("fails when a step has removed the user of its sandboxes", async () => {
    const { run } = host.start({
      steps: [
        ["USER", "gone"],
        ["RUN", "sed -i /^gone:/d /etc/passwd", "root"],
      ],
    });
    const message = "user 'gone' does not exist any more at the end of the build";
    await assert.rejects(run, { name: "BuildFailure", message, step: "finalize" });
    // The default user is made again.
    const { result } = await host.build({ steps: [["RUN", "sed -i /^user:/d /etc/passwd", "root"]] });
    assert.equal(await host.run(result, "id -un user"), "user\n");
  });

  it("kills a start command that does not end", async () => {
    const stubborn = 'trap "" TERM; echo begun; touch ~/up; while :; do sleep 1; done';
    const { result } = await host.build({ startCommand: stubborn, readyCommand: READY });
    assert.equal(result.start?.command, stubborn);
    assert.deepEqual(await host.leftovers(), []);
  });

  it("keeps the start command of a template in its own context, unless another one is given", async () => {
    const own = '[ "$A$PWD" = 1/app ] || exit 7; touch /tmp/up';
    const first = await host.build({
      steps: [
        ["ENV", "A", "1"],
        ["WORKDIR", "/app"],
      ],
      startCommand: own,
      readyCommand: "sleep 0",
    });
    host.templates.set("first", { ...first.result, backend: host.backend.name });
    const base = { kind: "template", reference: "first" } as const;
    const kept = await host.build({
      base,
      steps: [
        ["ENV", "A", "2"],
        ["WORKDIR", "/other"],
      ],
    });
    assert.deepEqual(kept.result.start, first.result.start);
    assert.ok(kept.lines.includes(`Running start command: ${own}`));
    const dropped = await host.build({ base, readyCommand: "true" });
    assert.equal(dropped.result.start, undefined);
    const other = await host.build({ base, startCommand: "echo $A $PWD", readyCommand: "sleep 0" });
    assert.ok(other.lines.includes("[start] [stdout]: 1 /app"));
  });
});
