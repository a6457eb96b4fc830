import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdir, mkdtemp, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import type { Launcher } from "../launcher/launcher.js";
import { ProjectQuotas } from "./given-numbers.js";
import { type Place, testApart } from "../testing/test-apart.js";
import { reasonToSkip } from "../testing/test-backend.js";

const IMAGE_BYTES = 256 * 2 ** 20;
/** Mounts an image for this process and its children alone. */
const MOUNTED = 'mount -o loop,prjquota "$1" "$2"; export TMPDIR="$2"; shift 2; exec "$@"';

describe("on a file system with project quotas", { skip: reasonToSkip() ?? false }, () => {
  let directory: string;
  let place: Place;

  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-projects-"));
    const image = join(directory, "image");
    const mounted = join(directory, "mounted");
    await mkdir(mounted);
    await writeFile(image, "");
    await truncate(image, IMAGE_BYTES);
    place = {
      uid: 0,
      enter: [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "/bin/sh",
        "-ec",
        MOUNTED,
        "sh",
        image,
        mounted,
      ],
    };
  });
  after(async () => {
    await rm(directory, { recursive: true });
  });

  it("programs inside cannot exceed the disk of their sandbox", async (context) => {
    if (process.getuid?.() !== 0) return context.skip("only root can mount one");
    try {
      const image = place.enter.at(-2) ?? "";
      execFileSync("mkfs.ext4", ["-q", "-O", "quota,project", "-E", "quotatype=prjquota", image]);
    } catch {
      return context.skip("the program mkfs.ext4 is missing or too old");
    }
    const [program, ...words] = place.enter;
    if (spawnSync(program, [...words, "true"], { stdio: "ignore" }).status !== 0) {
      return context.skip("this kernel does not count for projects on ext4, or has no loop devices");
    }
    await testApart(context, place, ["testing/project-quota-cases.js"]);
  });
});

it("a released number has no limit, and is reused last", async () => {
  const asked: unknown[] = [];
  const disk = async (...words: readonly unknown[]) => {
    asked.push(words);
    return "1";
  };
  const quotas = await ProjectQuotas.find({ disk } as unknown as Launcher, "/disk");
  assert.ok(quotas !== undefined);
  const first = quotas.take();
  await quotas.release(first);
  assert.deepEqual(asked.at(-1), ["limit", "/disk", first, 0]);
  const taken = new Set<number>();
  const takeAll = (): void => {
    for (;;) taken.add(quotas.take());
  };
  assert.throws(takeAll, { code: "resource_exhausted" });
  assert.equal(taken.size, 1_000_000);
  assert.equal([...taken].at(-1), first);
});
