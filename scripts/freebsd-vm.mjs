#!/usr/bin/env node
// Tries this tree on a FreeBSD in QEMU, and writes a report.
// usage: scripts/freebsd-vm.mjs IMAGE [REPORT [STEPS]] [-- PARAMETERS OF QEMU]
//
// IMAGE is an official VM image of FreeBSD, raw or qcow2, or one of these with .xz; it stays as it is. Root has to log in on
// its serial console without a password. REPORT is freebsd-vm.txt, STEPS is freebsd-vm-steps.sh beside this file; its head
// has its form. Everything that the console showed is in REPORT.console. docs/freebsd.md says more.
//
// COPPICE_VM_ACCELERATOR is kvm or tcg; without it, KVM where that works. COPPICE_VM_PATIENCE multiplies all times.
// Exit code: 0 if every step passed, 1 if not, 69 without QEMU.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { createReadStream, createWriteStream, existsSync } from "node:fs";
import { mkdir, mkdtemp, open, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { ROOT } from "./toolchain/project.mjs";

const STEPS = join(ROOT, "scripts", "freebsd-vm-steps.sh");
const QEMU = "qemu-system-x86_64";
/** With it and without a screen, FreeBSD's loader uses the serial console, whatever its loader.conf sets. */
const UEFI = "/usr/share/ovmf/OVMF.fd";
const BOOT_SECONDS = 300;
/** Factor for all times without KVM, unless COPPICE_VM_PATIENCE is set. */
const PATIENCE_WITHOUT_KVM = 6;
const GIB = 2 ** 30;

/**
 * Script of the guest around the steps. It runs one step by its number and prints the end of the step after its
 * last line.
 */
const RUN = "sh -eu .vm/$1 < /dev/null > .vm/$1.log 2>&1\nsh .vm/end $1 $?\n";
const END = 'echo "@@ begin $1"\n[ $2 = 0 ] && n=15 || n=400\ntail -n $n .vm/$1.log\necho "@@ end $1 $2"\n';

/** Parses a file of steps. Lines before the first step belong to every step. */
export function parseSteps(text) {
  const [common, ...parts] = text.split(/^#@ /m);
  return parts.map((part) => {
    const [, seconds, name, script] = /^(\d+) (.+)\n([^]*)$/.exec(part) ?? [];
    if (seconds === undefined) throw new Error(`not a step, which begins with seconds and a name: ${part}`);
    return { seconds: Number(seconds), name, script, all: `${common}${script}`, outcome: "not run" };
  });
}

function mustRun(command, parameters, options) {
  const { status, stderr, error } = spawnSync(command, parameters, { encoding: "utf8", ...options });
  if (status !== 0) throw new Error(`${command} failed: ${error?.message ?? stderr}`);
}

async function unpack(image, file) {
  const handle = await open(file, "w");
  mustRun("xz", ["-dc", image], { stdio: ["ignore", handle.fd, "pipe"] });
  await handle.close();
  return file;
}

/** This tree and the steps, as the bytes of a disk: for that the guest needs neither a network nor a file system. */
async function writeTree(folder, steps) {
  const file = join(folder, "tree.tar");
  const list = ["-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
  const names = spawnSync("git", list, { encoding: "utf8" }).stdout.split("\0");
  const input = names.filter((name) => name !== "" && existsSync(join(ROOT, name))).join("\0");
  const owner = ["--owner=0", "--group=0"];
  mustRun("tar", [...owner, "-cf", file, "-C", ROOT, "--null", "--files-from=-"], { input });
  await mkdir(join(folder, ".vm"));
  const scripts = { run: RUN, end: END, ...steps.map(({ all }) => all) };
  for (const [name, script] of Object.entries(scripts)) await writeFile(join(folder, ".vm", name), script);
  mustRun("tar", [...owner, "-rf", file, "-C", folder, ".vm"]);
  const { size } = await stat(file);
  await truncate(file, Math.ceil(size / 2 ** 20) * 2 ** 20);
  return file;
}

/** Three disks, in the guest's order: the image, of which the changes are elsewhere; this tree; an empty one. */
async function makeDisks(folder, image, steps) {
  const base = image.endsWith(".xz") ? await unpack(image, join(folder, "image")) : resolve(image);
  let start = "";
  for await (const bytes of createReadStream(base, { end: 3 })) start += bytes.toString("latin1");
  const system = join(folder, "system.qcow2");
  const form = start === "QFI\u00FB" ? "qcow2" : "raw";
  mustRun("qemu-img", ["create", "-q", "-f", "qcow2", "-F", form, "-b", base, system]);
  mustRun("qemu-img", ["resize", "-q", system, "+16G"]);
  const empty = join(folder, "empty");
  await writeFile(empty, "");
  await truncate(empty, 16 * GIB);
  return [
    { file: system, format: "qcow2" },
    { file: await writeTree(folder, steps), format: "raw" },
    { file: empty, format: "raw" },
  ];
}

/** Whether QEMU can use it: some machines have a /dev/kvm that does not work. */
function hasKvm() {
  const words = "-accel kvm -cpu max -nodefaults -display none -S -monitor stdio".split(" ");
  return spawnSync(QEMU, words, { input: "quit\n", timeout: 20_000 }).status === 0;
}

function parametersOfQemu(disks, further, accelerator) {
  const has = (...words) => words.some((word) => further.includes(word));
  const words = ["-nodefaults -display none -vga none -serial stdio -cpu max -smp 2 -device virtio-rng-pci"];
  words.push("-netdev user,id=net -device virtio-net-pci,netdev=net,romfile=");
  if (!has("-m")) words.push("-m 6G");
  words.push(`-accel ${accelerator}`);
  if (!has("-bios", "-kernel") && existsSync(UEFI)) words.push(`-bios ${UEFI}`);
  for (const index of disks.keys())
    words.push(`-device virtio-blk-pci,drive=disk${index},bootindex=${index + 1}`);
  const drives = disks.flatMap(({ file, format }, index) => [
    "-drive",
    `if=none,id=disk${index},file=${file.replaceAll(",", ",,")},format=${format},cache=unsafe`,
  ]);
  return [...drives, ...words.join(" ").split(" "), ...further];
}

/** A running QEMU and its serial console. */
class Guest {
  #qemu;
  #log;
  #patience;
  #text = "";
  #wake = () => undefined;
  #ended;

  constructor(parameters, log, patience) {
    this.#patience = patience;
    this.#log = createWriteStream(log).on("error", (error) => this.#end(error.message));
    this.#qemu = spawn(QEMU, parameters, { stdio: ["pipe", "pipe", "pipe"] });
    for (const stream of [this.#qemu.stdout, this.#qemu.stderr])
      stream.setEncoding("utf8").on("data", (text) => this.#take(text));
    this.#qemu.stdin.on("error", () => undefined);
    this.#qemu.on("error", (error) => this.#end(error.message));
    this.#qemu.on("close", (code, signal) => this.#end(`exit code ${code ?? signal}`));
  }

  #take(text) {
    this.#log.write(text);
    this.#text += text.replaceAll("\r", "");
    this.#wake();
  }

  #end(how) {
    this.#ended ??= `QEMU has ended: ${how}`;
    this.#wake();
  }

  /** Types a line, or another key. `until` matches only later output. */
  type(text) {
    this.#text = "";
    this.#qemu.stdin.write(text);
  }

  /** @returns the match; undefined when the time is up. @throws when there is no guest any more. */
  async until(pattern, seconds) {
    const deadlineMs = Date.now() + seconds * this.#patience * 1000;
    for (;;) {
      const match = pattern.exec(this.#text);
      if (match) return match;
      if (this.#ended) throw new Error(`${this.#ended}\n${this.lastLines()}`);
      const leftMs = deadlineMs - Date.now();
      if (leftMs <= 0) return undefined;
      await new Promise((resume) => {
        const timer = setTimeout(resume, leftMs);
        this.#wake = () => {
          clearTimeout(timer);
          resume();
        };
      });
    }
  }

  lastLines() {
    return this.#text.split("\n").slice(-20).join("\n");
  }

  /** Ends QEMU, however it is. */
  async end(how = "it was stopped") {
    const isRunning =
      this.#qemu.pid !== undefined && this.#qemu.exitCode === null && this.#qemu.signalCode === null;
    this.#end(how);
    if (isRunning && this.#qemu.kill("SIGKILL")) await once(this.#qemu, "close");
    await new Promise((resume) => this.#log.end(resume));
  }
}

/** From a console on which the system starts to a shell of root in the folder of the tree. */
async function logIn(guest, seconds) {
  if (!(await guest.until(/login: /, seconds)))
    throw new Error(`no login on the serial console\n${guest.lastLines()}`);
  // getty(8) drops input from before its first read.
  await sleep(500);
  guest.type("root\n");
  await guest.until(/[#$%] /, 10);
  for (let attempt = 1; attempt <= 6; attempt++) {
    guest.type("exec sh -c 'echo shell-$((6*7)); mkdir -p /coppice; cd /coppice; exec sh'\n");
    if (await guest.until(/shell-42/, 10)) return;
  }
  throw new Error(`root has no shell on the serial console\n${guest.lastLines()}`);
}

async function bringTree(guest) {
  // The console echoes the input, which must not be taken for output.
  const words =
    "dd bs=65536 if=$(ls /dev/vtbd1 /dev/vdb 2> /dev/null) | tar -xpf -; said=brought; [ -f .vm/end ]; echo $said $?";
  guest.type(`${words}\n`);
  const [, code] = (await guest.until(/brought (\d)/, BOOT_SECONDS)) ?? [];
  if (code !== "0") throw new Error(`the tree could not be brought in\n${guest.lastLines()}`);
}

async function runStep(guest, step, number) {
  guest.type(`sh .vm/run ${number}\n`);
  if (step.name.startsWith("reboot")) {
    await logIn(guest, step.seconds);
    return { code: 0, output: "" };
  }
  const end = new RegExp(`@@ begin ${number}\n([^]*)@@ end ${number} (\\d+)\n`);
  let match = await guest.until(end, step.seconds);
  if (match) return { code: Number(match[2]), output: match[1] };
  // Interrupts the program in the foreground, and prints the step's output so far.
  guest.type("\u0003");
  await sleep(2000);
  guest.type(`\nsh .vm/end ${number} 124\n`);
  match = await guest.until(end, 60);
  if (!match)
    throw new Error(`${step.name}: its time is up, and the guest does not answer\n${guest.lastLines()}`);
  return { code: 124, output: `${match[1]}its time was up` };
}

async function runSteps(guest, steps) {
  await logIn(guest, BOOT_SECONDS);
  await bringTree(guest);
  for (const [number, step] of steps.entries()) {
    const startedMs = Date.now();
    step.outcome = "FAILED";
    Object.assign(step, await runStep(guest, step, number));
    step.took = (Date.now() - startedMs) / 1000;
    if (step.code === 0) step.outcome = "passed";
    console.log(`${step.outcome}  ${step.name}: exit code ${step.code}, ${step.took.toFixed(1)} s`);
  }
}

function reportOf(image, parameters, steps, failure) {
  const indent = (text) => text.trim().replace(/^/gm, "    ");
  const parts = steps.map(({ name, script, outcome, code, took, output }) =>
    [
      `${outcome}  ${name}${code === undefined ? "" : `: exit code ${code}, ${took.toFixed(1)} s`}`,
      indent(script),
      ...(output ? ["  it said", indent(output)] : []),
    ].join("\n"),
  );
  const count = (outcome) => `${steps.filter((step) => step.outcome === outcome).length} ${outcome}`;
  const version = spawnSync(QEMU, ["--version"], { encoding: "utf8" }).stdout.split("\n")[0];
  return `${[
    `${basename(image)}, ${new Date().toISOString()}\n${version}: ${parameters.join(" ")}`,
    ...parts,
    ...(failure ? [`It was given up: ${failure}`] : []),
    `${count("passed")}, ${count("FAILED")}, ${count("not run")}`,
  ].join("\n\n")}\n`;
}

function refuse(code, reason) {
  console.error(`freebsd-vm: ${reason}`);
  return code;
}

async function main(words) {
  const at = words.includes("--") ? words.indexOf("--") : words.length;
  const [image, report = "freebsd-vm.txt", file = STEPS, ...others] = words.slice(0, at);
  if (image === undefined || others.length > 0)
    return refuse(64, "usage: scripts/freebsd-vm.mjs IMAGE [REPORT [STEPS]] [-- PARAMETERS OF QEMU]");
  for (const program of [QEMU, "qemu-img"]) {
    if (spawnSync(program, ["--version"]).status !== 0)
      return refuse(69, `${program} is missing: Debian has it in qemu-system-x86, qemu-utils and ovmf`);
  }
  const accelerator = process.env.COPPICE_VM_ACCELERATOR ?? (hasKvm() ? "kvm" : "tcg");
  const patience = Number(
    process.env.COPPICE_VM_PATIENCE ?? (accelerator === "kvm" ? 1 : PATIENCE_WITHOUT_KVM),
  );
  const steps = parseSteps(await readFile(file, "utf8"));
  const folder = await mkdtemp(join(tmpdir(), "coppice-vm-"));
  let guest;
  let failure;
  let parameters = [];
  const stop = (signal) => {
    failure = signal;
    void guest?.end(signal);
  };
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"];
  for (const signal of signals) process.on(signal, stop);
  try {
    parameters = parametersOfQemu(await makeDisks(folder, image, steps), words.slice(at + 1), accelerator);
    if (failure === undefined) guest = new Guest(parameters, `${report}.console`, patience);
    if (guest) await runSteps(guest, steps);
  } catch (error) {
    failure ??= error.message;
  } finally {
    await guest?.end();
    await rm(folder, { recursive: true, force: true });
    for (const signal of signals) process.off(signal, stop);
  }
  const text = reportOf(image, parameters, steps, failure);
  await writeFile(report, text);
  console.log(`${failure ? `given up: ${failure}\n` : ""}${text.trimEnd().split("\n").at(-1)}: ${report}`);
  return steps.every(({ outcome }) => outcome === "passed") ? 0 : 1;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href)
  process.exitCode = await main(process.argv.slice(2));
