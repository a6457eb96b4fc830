import assert from "node:assert/strict";
import { readFileSync, readdirSync, readlinkSync } from "node:fs";
import { after, before, describe, it } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import type { LayerBlob } from "@coppice/core/testing";
import { imageSettingsOf } from "../model/pushed-template.js";
import { BuildHost, WITHOUT_BUILDS } from "../testing/build-host.js";

/** A frame of zstd in 16 KiB that has a window of 512 MiB, and as many bytes in blocks of one byte again and again. */
function hungryZstd(byte: number): Buffer {
  const WINDOW_LOG = 29;
  const header = Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0, (WINDOW_LOG - 10) << 3]);
  const count = 2 ** WINDOW_LOG / 2 ** 17;
  const block = (isLast: boolean): Buffer => {
    const head = ((2 ** 17) << 3) | (1 << 1) | Number(isLast);
    return Buffer.from([head & 0xff, (head >> 8) & 0xff, head >> 16, byte]);
  };
  return Buffer.concat([header, ...Array.from({ length: count }, (_, index) => block(index === count - 1))]);
}

/** The most memory that skopeo, in a directory, and this process beside what it has now, take until a signal. */
async function memoryPeak(directory: string, signal: AbortSignal): Promise<number> {
  const before = process.memoryUsage.rss();
  let peak = 0;
  while (!signal.aborted) {
    let bytes = process.memoryUsage.rss() - before;
    for (const id of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
      try {
        if (!readlinkSync(`/proc/${id}/cwd`).startsWith(directory)) continue;
        const [, kib = 0] = /^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${id}/status`, "utf8")) ?? [];
        bytes += Number(kib) * 1024;
      } catch {
        // It has ended.
      }
    }
    peak = Math.max(peak, bytes);
    await delay(20);
  }
  return peak;
}

const BUILD = "00000000-0000-0000-0000-0000000000";

describe("building a template", { skip: WITHOUT_BUILDS, timeout: 240_000, concurrency: 1 }, () => {
  let host: BuildHost;
  before(async () => {
    host = await BuildHost.open();
  });
  after(() => host[Symbol.asyncDispose]());

  it("logs its base, its steps and its end in order, and leaves a root with what they made", async () => {
    const command =
      'echo "  $GREETING  "; echo; printf "10 %%\\r20 %%\\r\\n"; echo oops >&2; echo made > ~/file; sleep 60 &';
    const { result, lines } = await host.build({
      steps: [
        ["ENV", "GREETING", "Hello, World!"],
        ["run", command],
      ],
    });
    assert.match(lines.at(-1) ?? "", /^Build finished, took \d+s$/);
    assert.deepEqual(
      lines.slice(0, -1).filter((line) => !line.startsWith("Pulling ")),
      [
        `Building template template1/${BUILD}01`,
        `[base] FROM ${host.image}`,
        "Unpacking the image",
        "This image has no sudo, curl, git, jq, ca-certificates, and no package manager to install it",
        "[base] DEFAULT USER user",
        "[builder 1/2] ENV GREETING Hello, World!",
        `[builder 2/2] RUN ${command}`,
        "[builder 2/2] [stdout]: Hello, World!",
        "[builder 2/2] [stdout]: 10 %",
        "[builder 2/2] [stdout]: 20 %",
        "[builder 2/2] [stderr]: oops",
        "[finalize] Finalizing template build",
      ],
    );
    const environment = { OF_IMAGE: "yes", GREETING: "Hello, World!" };
    assert.deepEqual(result.context, { environment, user: "user", workdir: undefined });
    assert.equal(result.start, undefined);
    assert.ok(result.bytes > 4_000_000, `${result.bytes} bytes`);
    const script = "cat ~user/file ~user/.bashrc; stat -c '%U %a' /home/user /usr/local /code ~user/file";
    assert.equal(
      await host.run(result, script),
      "made\n# of the skeleton\nuser 755\nroot 777\nroot 777\nuser 644\n",
    );
    assert.deepEqual(await host.leftovers(), []);
  });

  it("restores the configuration of a pushed template, where it is asked to, and runs its start command", async () => {
    const start = {
      command: "echo up > ~/up && sleep 60",
      ready: "[ -f ~/up ]",
      user: "root",
      workdir: "/var",
      environment: { A: "b" },
      ports: [],
    };
    const template = { environment: { A: "b" }, user: "root", workdir: "/tmp", limits: { cpuCount: 4 } };
    const config = imageSettingsOf({ ...template, start });
    const reference = await host.addImage("pushed", [], { config });
    const base = { kind: "image", reference, credentials: undefined } as const;
    const plain = await host.build({ base });
    assert.deepEqual(plain.result.context, { environment: { A: "b" }, user: "user", workdir: undefined });
    assert.equal(plain.result.start, undefined);
    for (const restore of [{ limits: true }, { limits: false }]) {
      const { result } = await host.build({ base, restore });
      assert.deepEqual({ ...result.context }, template);
      assert.deepEqual(result.start, start);
      assert.equal(await host.run(result, "cat /root/up"), "up\n");
    }
    const ordinary = await host.build({ restore: { limits: true } });
    assert.deepEqual(ordinary.result.context, {
      environment: { OF_IMAGE: "yes" },
      user: "user",
      workdir: undefined,
    });
    const [away, own] = ["/srv/not/there", "/home/user/own"];
    const moved = imageSettingsOf({
      ...template,
      user: "user",
      workdir: away,
      start: { ...start, workdir: own },
    });
    const elsewhere = await host.addImage("moved", [], { config: moved });
    const made = await host.build({ base: { ...base, reference: elsewhere }, restore: { limits: true } });
    const owners = `stat -c '%U %F' ${away} /srv/not ${own}`;
    assert.equal(await host.run(made.result, owners), "user directory\nuser directory\nroot directory\n");
    const onFile = imageSettingsOf({ ...template, workdir: "/etc/passwd/below", start: undefined });
    const blocked = await host.addImage("blocked", [], { config: onFile });
    await assert.rejects(
      host.build({ base: { ...base, reference: blocked }, restore: { limits: true } }),
      /failed to create workdir: /,
    );
    const broken = imageSettingsOf({ ...template, user: "nobody-there", start: undefined });
    const other = await host.addImage("broken", [], { config: broken });
    await assert.rejects(
      host.build({ base: { ...base, reference: other }, restore: { limits: true } }),
      /user 'nobody-there' does not exist/,
    );
  });

  it("takes what has not changed from the cache, from the base to the end, without a sandbox", async () => {
    const steps = [
      ["ENV", "A", "${HOME}"],
      ["RUN", "echo one > ~/one"],
      ["RUN", "echo two > ~/two"],
    ] as const;
    const first = await host.build({ steps });
    const { mock } = host.watchProvisions();
    const requests = host.registry.requests.length;
    const again = await host.build({ steps });
    assert.equal(mock.callCount(), 0);
    assert.equal(host.registry.requests.length, requests);
    assert.deepEqual({ ...again.result }, { ...first.result });
    assert.deepEqual(again.lines.slice(1, -1), [
      `CACHED [base] FROM ${host.image}`,
      "CACHED [base] DEFAULT USER user",
      "CACHED [builder 1/3] ENV A ${HOME}",
      "CACHED [builder 2/3] RUN echo one > ~/one",
      "CACHED [builder 3/3] RUN echo two > ~/two",
      "CACHED [finalize] Finalizing template build",
    ]);
    const other = await host.build({ steps: [...steps.slice(0, 2), ["RUN", "echo 2 > ~/two"]] });
    assert.deepEqual(
      other.lines.filter((line) => line.includes("[builder")),
      [
        "CACHED [builder 1/3] ENV A ${HOME}",
        "CACHED [builder 2/3] RUN echo one > ~/one",
        "[builder 3/3] RUN echo 2 > ~/two",
      ],
    );
    assert.equal(await host.run(other.result, "cd ~user; cat one two"), "one\n2\n");
    // One for the step, and one for the end.
    assert.equal(mock.callCount(), 2 + 1);
    mock.restore();
    const foreign = await host.build({ steps, tenant: "another" });
    assert.ok(!foreign.lines.some((line) => line.startsWith("CACHED")));
  });

  it("runs everything anew where a client forces it", async () => {
    const of = (line: string, force = false) => ({ type: "RUN", args: [line], filesHash: undefined, force });
    await host.build({ steps: [of("true"), of("echo $RANDOM$RANDOM > ~/time")] });
    const step = await host.build({ steps: [of("true", true), of("echo $RANDOM$RANDOM > ~/time")] });
    assert.deepEqual(
      step.lines.filter((line) => line.startsWith("CACHED")),
      [`CACHED [base] FROM ${host.image}`, "CACHED [base] DEFAULT USER user"],
    );
    const requests = host.registry.requests.length;
    const whole = await host.build({ steps: [of("true"), of("echo $RANDOM$RANDOM > ~/time")], force: true });
    assert.ok(!whole.lines.some((line) => line.startsWith("CACHED")));
    // The image is asked for, and was not changed.
    assert.deepEqual(host.registry.requests.slice(requests), ["GET /v2/small/manifests/1"]);
    assert.notEqual(
      await host.run(step.result, "cat ~user/time"),
      await host.run(whole.result, "cat ~user/time"),
    );
  });

  it("keeps the finished steps of a failed build, and nothing else of it", async () => {
    const steps = [
      ["RUN", "echo kept > ~/kept"],
      ["RUN", "echo lost > ~/lost; exit 43"],
      ["RUN", "true"],
    ] as const;
    const failed = host.start({ steps });
    await assert.rejects(failed.run, {
      name: "BuildFailure",
      message: "failed to run command 'echo lost > ~/lost; exit 43': exit status 43",
      step: "2",
    });
    assert.deepEqual(failed.entries.at(-1), {
      level: "error",
      message: "Build failed: failed to run command 'echo lost > ~/lost; exit 43': exit status 43",
      step: "2",
    });
    assert.deepEqual(await host.leftovers(), []);
    const { lines, result } = await host.build({ steps: [steps[0]] });
    assert.ok(lines.includes("CACHED [builder 1/1] RUN echo kept > ~/kept"));
    assert.equal(await host.run(result, "cd ~user; echo kept* lost*"), "kept lost*\n");
  });

  it("ends at once when it is given up, and leaves nothing", async () => {
    const aborting = new AbortController();
    const reason = new Error("given up");
    const { run } = host.start({
      steps: [["RUN", "echo begun; sleep 300"]],
      signal: aborting.signal,
      onLine: (line) => void (line.endsWith("[stdout]: begun") && aborting.abort(reason)),
    });
    await assert.rejects(run, reason);
    assert.deepEqual(await host.leftovers(), []);
    const late = new AbortController();
    const pulling = host.start({
      base: { kind: "image", reference: await host.addImage("late", []), credentials: undefined },
      signal: late.signal,
      onLine: (line) => void (line.startsWith("Unpacking") && late.abort(reason)),
    });
    await assert.rejects(pulling.run, reason);
    await delay(10);
    assert.deepEqual(await host.leftovers(), []);
  });

  it("goes on from another template, with its variables, directory and files", async () => {
    const first = await host.build({
      steps: [
        ["ENV", "OF_TEMPLATE", "1"],
        ["WORKDIR", "/app"],
        ["USER", "other"],
        ["RUN", "id -un > ~/who"],
      ],
    });
    assert.deepEqual([first.result.context.user, first.result.context.workdir], ["other", "/app"]);
    host.templates.set("first", { ...first.result, backend: host.backend.name });
    const base = { kind: "template", reference: "first" } as const;
    const { result, lines } = await host.build({
      base,
      steps: [["RUN", "echo $OF_TEMPLATE $PWD $(id -un)"]],
    });
    assert.deepEqual(lines.slice(1, 5), [
      "CACHED [base] FROM TEMPLATE first",
      "CACHED [base] DEFAULT USER user",
      "[builder 1/1] RUN echo $OF_TEMPLATE $PWD $(id -un)",
      "[builder 1/1] [stdout]: 1 /app user",
    ]);
    assert.equal(await host.run(result, "cat ~other/who"), "other\n");
    assert.deepEqual([result.context.user, result.context.workdir], ["user", "/app"]);

    const unknown = host.start({ base: { kind: "template", reference: "nobody/none" } });
    await assert.rejects(unknown.run, { message: "template 'nobody/none' not found", step: "base" });
    host.templates.set("elsewhere", { ...first.result, backend: "other" });
    const foreign = host.start({ base: { kind: "template", reference: "elsewhere" } });
    await assert.rejects(foreign.run, { message: /is of another backend, 'other'$/, step: "base" });

    // A template may stand for an image.
    const standing = host.start({
      base: { kind: "image", reference: "e2bdev/base:latest", credentials: undefined },
    });
    await assert.rejects(standing.run, /^BuildFailure: failed to pull image|^BuildFailure: access denied/);
    host.templates.set("base", { ...first.result, backend: host.backend.name });
    const stood = await host.build({
      base: { kind: "image", reference: "e2bdev/base", credentials: undefined },
    });
    assert.equal(stood.lines[1], "CACHED [base] FROM e2bdev/base");
  });

  it("refuses small layers that take gigabytes of memory to decompress, and takes little itself", async (context) => {
    const mediaType = "application/vnd.oci.image.layer.v1.tar+zstd";
    const layer = (byte: number): LayerBlob => ({
      archive: Buffer.of(byte),
      blob: hungryZstd(byte),
      mediaType,
    });
    const reference = await host.addImage("hungry", layer(0), { above: [layer(1), layer(2), layer(3)] });
    const base = { kind: "image", reference, credentials: undefined } as const;
    const watching = new AbortController();
    context.after(() => watching.abort());
    const peak = memoryPeak(host.directory, watching.signal);
    await assert.rejects(host.build({ base }), {
      name: "BuildFailure",
      message: /^failed to unpack image '.*': .*cannot be decompressed: Frame requires too much memory/,
    });
    watching.abort();
    assert.ok((await peak) < 300 * 2 ** 20, `${await peak} bytes`);
    assert.deepEqual(await host.leftovers(), []);
  });

  it("tells what is wrong with an image", async () => {
    const failed = (reference: string) =>
      host.start({ base: { kind: "image", reference, credentials: undefined } }).run;
    const missing = `${host.registry.address}/small:2`;
    await assert.rejects(failed(missing), {
      message: `image '${missing}' not found: the image or tag does not exist in the registry`,
      step: "base",
    });
    for (const name of ["-x", "__proto__"])
      await assert.rejects(failed(name), { message: /^invalid image reference '/, step: "base" });
    const garbage = Buffer.from("no archive");
    const mediaType = "application/vnd.oci.image.layer.v1.tar+gzip";
    const broken = await host.addImage("broken", { blob: garbage, archive: garbage, mediaType });
    await assert.rejects(failed(broken), { message: /^failed to (unpack|pull) image '.*': /, step: "base" });
    const bare = await host.addImage("bare", [{ name: "etc/", type: "5" }], { isWhole: true });
    await assert.rejects(failed(bare), { message: /^image '.*' has no bash, /, step: "base" });
    assert.deepEqual(await host.leftovers(), []);
  });
});
