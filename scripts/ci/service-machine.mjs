// Proves the Debian package on a machine of its own, under a real systemd: installed, restarted, killed, hung, upgraded,
// downgraded, rebooted, removed and purged. Needs root, and mmdebstrap.
//
// usage: node scripts/ci/service-machine.mjs PACKAGE.deb
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { homedir, tmpdir } from "node:os";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { bookwormInto } from "../release/debian-package.mjs";
import { ROOT } from "../toolchain/project.mjs";

const [first] = process.argv.slice(2);
if (first === undefined) {
  console.error("usage: node scripts/ci/service-machine.mjs PACKAGE.deb");
  process.exit(2);
}
/** What the package depends on, and a browser of the shell's. */
const PACKAGES =
  "systemd,systemd-sysv,dbus,init-system-helpers,iproute2,nftables,ca-certificates,libstdc++6,curl,procps";
const BOOT_MS = 60_000;
/** Where nothing may be left. */
const PLACES = [
  "/etc/coppice",
  "/usr/lib/coppice",
  "/usr/bin/coppice",
  "/var/lib/coppice",
  "/etc/systemd/system/multi-user.target.wants/coppice.service",
];

const work = mkdtempSync(join(tmpdir(), "coppice-service-"));
const root = join(work, "root");
let machine;

try {
  makeRoot();
  const next = makeNext();
  for (const file of [first, next]) copyFileSync(file, join(root, "root", basename(file)));
  await boot();

  step("install", () => {
    inside("dpkg", "--install", `/root/${basename(first)}`);
    assert.equal(active(), "active");
    assert.match(
      readFileSync(join(root, "etc/coppice/environment"), "utf8"),
      /^COPPICE_API_KEY=e2b_[0-9a-f]{40}$/m,
    );
    assert.equal(
      inside("stat", "--format=%a %U", "/etc/coppice/environment", "/var/lib/coppice"),
      "600 root\n700 root",
    );
  });
  const sandbox = create();
  const pid = run(sandbox, "sleep 86400 >/dev/null 2>&1 & echo $!");
  const lives = () => assert.equal(run(sandbox, `kill -0 ${pid} && cat /home/user/kept`), "kept");
  run(sandbox, "echo kept > /home/user/kept");
  step("a restart keeps the sandbox and what runs in it", () => {
    const before = mainPid();
    inside("systemctl", "restart", "coppice");
    assert.notEqual(mainPid(), before);
    lives();
  });
  step("a reload reads certificates, and the service stays the same", () => {
    const before = mainPid();
    inside("systemctl", "reload", "coppice");
    assert.equal(mainPid(), before);
    lives();
  });
  await eventually("a killed server is started again", () => inside("kill", "-KILL", mainPid()), lives);
  await eventually(
    "a server that hangs is started again by the watchdog",
    () => {
      mkdirSync(join(root, "etc/systemd/system/coppice.service.d"), { recursive: true });
      writeFileSync(
        join(root, "etc/systemd/system/coppice.service.d/watchdog.conf"),
        "[Service]\nWatchdogSec=3\n",
      );
      inside("systemctl", "daemon-reload");
      inside("systemctl", "restart", "coppice");
      inside("kill", "-STOP", mainPid());
    },
    () => {
      assert.match(inside("journalctl", "--unit=coppice", "--no-pager"), /[Ww]atchdog timeout/);
      lives();
    },
  );
  rmSync(join(root, "etc/systemd/system/coppice.service.d"), { recursive: true });
  inside("systemctl", "daemon-reload");
  for (const [what, file] of [
    ["an upgrade", next],
    ["a downgrade", first],
  ])
    await eventually(
      `${what} keeps them`,
      () => inside("dpkg", "--install", `/root/${basename(file)}`),
      lives,
    );
  step("the worker's exposure is no greater than it was", () =>
    inside("systemd-analyze", "security", "--threshold=92", "coppice", "--no-pager"),
  );

  await shutDown();
  await boot();
  await eventually(
    "after a reboot it serves",
    () => undefined,
    () => assert.equal(run(create(), "echo served"), "served"),
  );
  step("removal ends sandboxes, and a purge leaves nothing", () => {
    inside("dpkg", "--purge", "coppice");
    for (const place of PLACES) assert.equal(existsSync(join(root, place)), false, place);
    assert.equal(inside("sh", "-c", "pgrep -f '[c]oppice|[s]leep 86400' || true"), "");
    assert.equal(inside("sh", "-c", "grep coppice /proc/mounts || true"), "");
    assert.equal(inside("sh", "-c", "find /sys/fs/cgroup -depth -type d -name 'coppice*' || true"), "");
  });
  console.log("service: passed");
} catch (error) {
  if (machine !== undefined)
    console.error(attempt(() => inside("journalctl", "--unit=coppice", "--no-pager", "--lines=60")));
  throw error;
} finally {
  await shutDown();
  rmSync(work, { recursive: true, force: true });
}

/** Debian with systemd, kept as an archive for the next time. */
function makeRoot() {
  const cache = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "coppice-service-machine");
  const archive = join(cache, `${PACKAGES.replaceAll(",", "+").slice(0, 60)}.tar`);
  mkdirSync(cache, { recursive: true });
  if (!existsSync(archive)) {
    const suite = bookwormInto(`${archive}.unfinished`, join(work, "sources.list"));
    const args = ["--format=tar", "--quiet", "--variant=minbase", `--include=${PACKAGES}`, ...suite];
    execFileSync("mmdebstrap", args, { stdio: "inherit" });
    renameSync(`${archive}.unfinished`, archive);
  }
  mkdirSync(root);
  execFileSync("tar", ["--extract", "--numeric-owner", `--directory=${root}`, `--file=${archive}`]);
}

/** The same package as a later version. */
function makeNext() {
  const [folder, path] = [join(work, "next"), join(work, "next.deb")];
  execFileSync("dpkg-deb", ["--raw-extract", first, folder]);
  const control = join(folder, "DEBIAN/control");
  writeFileSync(control, readFileSync(control, "utf8").replace(/^Version: .+$/m, "$&+next"));
  execFileSync("dpkg-deb", ["--root-owner-group", "-Zgzip", "-z1", "--build", folder, path], {
    stdio: "ignore",
  });
  rmSync(folder, { recursive: true });
  return path;
}

async function boot() {
  const shell = spawn(join(ROOT, "scripts/ci/boot-systemd.sh"), [root], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  machine = { shell, ended: new Promise((resolve) => shell.once("exit", resolve)) };
  // The shell's subshell became unshare(1), whose child is the first process of the machine.
  const [unshare] = await untilSome(() => childrenOf(shell.pid));
  [machine.pid] = await untilSome(() => childrenOf(unshare));
  await untilSome(() =>
    attempt(() => inside("systemctl", "is-system-running")) === "running" ? [true] : [],
  );
}

function childrenOf(pid) {
  return execFileSync("pgrep", ["--parent", String(pid)], { encoding: "utf8" })
    .trim()
    .split("\n");
}

/** As its power button does; what does not end then is killed. */
async function shutDown() {
  if (machine === undefined) return;
  attempt(() => inside("systemctl", "poweroff"));
  const { shell, ended } = machine;
  const killing = setTimeout(
    () => attempt(() => execFileSync("pkill", ["-KILL", "--parent", String(shell.pid)])),
    BOOT_MS,
  );
  await ended;
  clearTimeout(killing);
  machine = undefined;
}

function inside(...command) {
  const options = { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], timeout: BOOT_MS };
  return execFileSync("nsenter", ["--target", machine.pid, "--all", "--", ...command], options).trim();
}

function active() {
  return attempt(() => inside("systemctl", "is-active", "coppice"));
}

function mainPid() {
  return inside("systemctl", "show", "--property=MainPID", "--value", "coppice");
}

function create() {
  const key = /=(.+)/.exec(readFileSync(join(root, "etc/coppice/environment"), "utf8"))[1];
  const { sandboxID: id, envdAccessToken: token } = post("/sandboxes", [`x-api-key: ${key}`], {
    templateID: "base",
    timeout: 3600,
  });
  return { id, token };
}

/** Runs a script of the shell. @returns what it printed. */
function run({ id, token }, script) {
  const headers = [`e2b-sandbox-id: ${id}`, "e2b-sandbox-port: 49983", `x-access-token: ${token}`];
  const lines = post("/commands", headers, { cmd: "/bin/sh", args: ["-c", script] }, (text) =>
    text
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line)),
  );
  const end = lines.at(-1);
  assert.equal(end.exit_code, 0, JSON.stringify(lines));
  return lines
    .filter(({ type }) => type === "stdout")
    .map(({ data }) => data)
    .join("")
    .trim();
}

function post(path, headers, body, parse = JSON.parse) {
  const all = ["content-type: application/json", ...headers].flatMap((header) => ["--header", header]);
  return parse(
    inside(
      "curl",
      "--silent",
      "--show-error",
      "--fail-with-body",
      ...all,
      "--data",
      JSON.stringify(body),
      `http://127.0.0.1:3000${path}`,
    ),
  );
}

function step(what, act) {
  act();
  console.log(`service: ${what}`);
}

async function eventually(what, act, check) {
  act();
  const until = Date.now() + BOOT_MS;
  for (;;)
    try {
      check();
      break;
    } catch (error) {
      if (Date.now() > until) throw error;
      await sleep(200);
    }
  console.log(`service: ${what}`);
}

async function untilSome(find) {
  const until = Date.now() + BOOT_MS;
  for (;;) {
    try {
      const found = find();
      if (found.length > 0) return found;
    } catch {
      // Not yet.
    }
    if (Date.now() > until) throw new Error("the machine did not boot");
    await sleep(100);
  }
}

function attempt(act) {
  try {
    return act();
  } catch (error) {
    return `${error.stdout ?? ""}${error.stderr ?? error.message}`;
  }
}
