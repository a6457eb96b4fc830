import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { eventually } from "@coppice/core/testing";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const PROGRAM = join(ROOT, "scripts", "freebsd-vm.mjs");
const GUEST = process.env["COPPICE_TEST_GUEST"];

function reasonToSkip(): string | false {
  for (const program of ["/usr/bin/qemu-system-x86_64", "/usr/bin/qemu-img"])
    if (!existsSync(program)) return `${program} is missing`;
  return GUEST === undefined && "there is no Debian for QEMU (test/freebsd/make-guest.sh)";
}

/** Steps for the guest, a Debian: the names of its disks and its programs differ from FreeBSD's. */
const STEPS = `
set -u
#@ 60 the tree is there
sha256sum scripts/freebsd-vm.mjs
cat /proc/sys/kernel/random/boot_id > kept
#@ 60 one that fails
echo before
exit 3
#@ 2 one that hangs
echo waiting
sleep 600
#@ 60 the third disk is empty
[ "$(dd if=/dev/vdc bs=65536 count=4 2> /dev/null | tr -d '\\0' | wc -c)" = 0 ]
#@ 90 reboot
reboot
#@ 60 the disk is kept
! cmp -s kept /proc/sys/kernel/random/boot_id
#@ 60 the machine goes
poweroff -f
#@ 60 never reached
true
`;

const sha256 = async (file: string) =>
  createHash("sha256")
    .update(await readFile(file))
    .digest("hex");

describe("what FreeBSD's virtual machine is for, with a Debian in it", { skip: reasonToSkip() }, () => {
  const image = join(GUEST ?? "", "image");
  let folder: string;
  const report = () => readFile(join(folder, "report"), "utf8");

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), "coppice-vm-test-"));
    await mkdir(join(folder, "tmp"));
  });

  after(() => rm(folder, { recursive: true, force: true }));

  const start = async (steps: string, from = image) => {
    await writeFile(join(folder, "steps"), steps);
    const linux = ["-kernel", join(GUEST ?? "", "kernel"), "-initrd", join(GUEST ?? "", "initrd")];
    const words = ["-m", "512M", ...linux, "-append", "root=/dev/vda console=ttyS0 quiet"];
    const env = {
      ...process.env,
      TMPDIR: join(folder, "tmp"),
      COPPICE_VM_ACCELERATOR: "tcg",
      COPPICE_VM_PATIENCE: "1",
    };
    const parameters = [PROGRAM, from, join(folder, "report"), join(folder, "steps"), "--", ...words];
    return spawn(process.execPath, parameters, { env, stdio: ["ignore", "ignore", "inherit"] });
  };

  /** Asserts that no QEMU has a file of this test open, and that the files are gone. */
  const leavesNothing = async () => {
    const { stdout } = spawnSync("ps", ["-eo", "args"], { encoding: "utf8" });
    assert.deepEqual(
      stdout.split("\n").filter((line) => line.startsWith("qemu") && line.includes(folder)),
      [],
    );
    assert.deepEqual(await readdir(join(folder, "tmp")), []);
  };

  it("runs the steps, also after a reboot, and reports what each of them did", async () => {
    const before = await sha256(image);
    const [code] = await once(await start(STEPS), "exit");
    assert.equal(code, 1);
    const text = await report();
    assert.deepEqual(
      [...text.matchAll(/^(passed|FAILED|not run) {2}(.+?)(?:: (exit code \d+), .*)?$/gm)].map((it) =>
        it.slice(1),
      ),
      [
        ["passed", "the tree is there", "exit code 0"],
        ["FAILED", "one that fails", "exit code 3"],
        ["FAILED", "one that hangs", "exit code 124"],
        ["passed", "the third disk is empty", "exit code 0"],
        ["passed", "reboot", "exit code 0"],
        ["passed", "the disk is kept", "exit code 0"],
        ["FAILED", "the machine goes", undefined],
        ["not run", "never reached", undefined],
      ],
      text,
    );
    assert.match(text, new RegExp(`^ {4}${await sha256(PROGRAM)} {2}scripts/freebsd-vm.mjs$`, "m"));
    assert.match(text, /^ {4}before$/m);
    assert.match(text, /^ {4}waiting\n {4}its time was up$/m);
    assert.match(text, /^It was given up: QEMU has ended: exit code 0$/m);
    assert.match(text, /^4 passed, 3 FAILED, 1 not run$/m);
    assert.equal(await sha256(image), before);
    await leavesNothing();
  });

  it("takes an image with .xz, and ends with 0 when all passed", async () => {
    const packed = join(folder, "image.xz");
    execFileSync("/bin/sh", ["-c", 'exec xz -0 -T0 -c "$1" > "$2"', "sh", image, packed]);
    const [code] = await once(await start("#@ 60 the only one\ntest -f package.json\n", packed), "exit");
    assert.equal(code, 0, await report());
    assert.match(await report(), /\n1 passed, 0 FAILED, 0 not run\n$/);
    await leavesNothing();
  });

  it("ends the machine and says so when it is stopped in the midst of a step", async () => {
    const program = await start("#@ 300 a long one\necho @@ > /dev/console\nsleep 600\n");
    const console = () => readFile(join(folder, "report.console"), "utf8").catch(() => "");
    await eventually("the step", async () => /^@@\r?$/m.test(await console()), 180_000);
    program.kill("SIGTERM");
    const [code] = await once(program, "exit");
    assert.equal(code, 1);
    assert.match(await report(), /^It was given up: SIGTERM$/m);
    await leavesNothing();
  });
});

describe("the steps on FreeBSD", () => {
  it("are scripts that sh(1) can read, each with a name and seconds", async () => {
    const { parseSteps } = (await import(PROGRAM)) as {
      readonly parseSteps: (text: string) => readonly { readonly name: string; readonly all: string }[];
    };
    const steps = parseSteps(await readFile(join(ROOT, "scripts", "freebsd-vm-steps.sh"), "utf8"));
    assert.ok(steps.some(({ name }) => name.startsWith("reboot")));
    for (const { all } of steps) execFileSync("/bin/sh", ["-n"], { input: all });
    assert.throws(() => parseSteps("#@ no seconds\ntrue\n"), /not a step/);
  });
});
