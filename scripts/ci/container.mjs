// Proves the image of a container in one: runc runs it as `docker run --privileged` would, with the directory of its data
// from outside. Needs root, skopeo, umoci and runc.
//
// usage: node scripts/ci/container.mjs IMAGE.tar.gz
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const [image] = process.argv.slice(2);
if (image === undefined) {
  console.error("usage: node scripts/ci/container.mjs IMAGE.tar.gz");
  process.exit(2);
}
const READY_MS = 60_000;
const STOP_MS = 30_000;
const KEY = `e2b_${"0".repeat(40)}`;
/** Each at the place of its bit. */
const CAPABILITIES =
  "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE".split(
    " ",
  );
const NAME = `coppice-ci-${process.pid}`;

const work = mkdtempSync(join(tmpdir(), "coppice-container-"));
const data = join(work, "data");
const bundle = join(work, "bundle");
let container;
try {
  mkdirSync(data);
  unpack();
  await start();
  const sandbox = coppice("create", "--template", "base");
  step("a sandbox of it runs commands, apart from the container", () => {
    assert.equal(
      inside(sandbox, "id -un; cat /var/lib/coppice/ledger.sqlite 2>/dev/null | wc -c"),
      "user\n0",
    );
    assert.equal(inside(sandbox, "echo kept > ~/kept; cat ~/kept"), "kept");
  });
  await stop();
  await start();
  step("another container goes on with its data", () => {
    assert.equal(inside(coppice("create", "--template", "base"), "echo again"), "again");
  });
  await stop();
  step("nothing is left of it", () => {
    const left = run("find", "/sys/fs/cgroup", "-type", "d", "-name", NAME);
    assert.equal(left + run("sh", "-c", 'grep "$0" /proc/mounts || true', work), "");
  });
  console.log("container: passed");
} finally {
  if (container !== undefined) run("runc", "delete", "--force", NAME);
  rmSync(work, { recursive: true, force: true });
}

/** The image as a root file system with the configuration of its container. */
function unpack() {
  const layout = join(work, "layout");
  // skopeo reads no compressed archive in place.
  const tar = join(work, "image.tar");
  execFileSync("sh", ["-c", 'gzip --decompress --stdout "$0" >"$1"', image, tar]);
  run("skopeo", "--insecure-policy", "copy", "--quiet", `docker-archive:${tar}`, `oci:${layout}:image`);
  run("umoci", "unpack", "--image", `${layout}:image`, bundle);
  const file = join(bundle, "config.json");
  writeFileSync(file, JSON.stringify(privileged(JSON.parse(readFileSync(file, "utf8")))));
}

/** As `docker run --privileged -v data:/var/lib/coppice -e COPPICE_API_KEY=…` makes it, without a network. */
function privileged({ process: program, mounts, ...spec }) {
  // A machine that is a container itself may lack some.
  const [, mask] = /^CapBnd:\s*(\w+)$/m.exec(readFileSync("/proc/self/status", "utf8"));
  const has = (bit) => ((BigInt(`0x${mask}`) >> BigInt(bit)) & 1n) === 1n;
  const capabilities = CAPABILITIES.filter((_, bit) => has(bit)).map((name) => `CAP_${name}`);
  const usual = mounts.filter(
    ({ destination }) => !destination.startsWith("/sys") && !destination.includes("/etc/"),
  );
  return {
    ...spec,
    root: { path: "rootfs", readonly: false },
    hostname: "container",
    mounts: [
      ...usual.filter(({ destination }) => destination !== "/var/lib/coppice"),
      { destination: "/sys", type: "sysfs", source: "sysfs", options: ["nosuid", "noexec", "nodev"] },
      {
        destination: "/sys/fs/cgroup",
        type: "cgroup",
        source: "cgroup",
        options: ["nosuid", "noexec", "nodev", "rw"],
      },
      { destination: "/var/lib/coppice", type: "bind", source: data, options: ["rbind", "rw"] },
    ],
    process: {
      ...program,
      terminal: false,
      env: [...program.env, `COPPICE_API_KEY=${KEY}`],
      capabilities: Object.fromEntries(
        ["bounding", "effective", "permitted"].map((set) => [set, capabilities]),
      ),
      noNewPrivileges: false,
    },
    linux: {
      namespaces: ["pid", "network", "ipc", "uts", "mount", "cgroup"].map((type) => ({ type })),
      resources: { devices: [{ allow: true, access: "rwm" }] },
      cgroupsPath: `/${NAME}`,
    },
  };
}

async function start() {
  container = spawn("runc", ["run", "--bundle", bundle, NAME], { stdio: ["ignore", "pipe", "pipe"] });
  let printed = "";
  for (const stream of [container.stdout, container.stderr]) stream.on("data", (chunk) => (printed += chunk));
  const ended = new Promise((resolve) => container.once("exit", resolve));
  container.ended = ended;
  for (const until = Date.now() + READY_MS; !printed.includes("E2B_API_URL=");) {
    assert.ok(Date.now() < until && container.exitCode === null, `it does not serve:\n${printed}`);
    await sleep(100);
  }
}

/** Ends it as `docker stop` does. */
async function stop() {
  const { ended } = container;
  run("runc", "kill", NAME, "TERM");
  const code = await Promise.race([ended, sleep(STOP_MS, "late", { ref: false })]);
  assert.equal(code, 0, "it did not stop");
  container = undefined;
}

function coppice(...words) {
  const environment = ["--env", `E2B_API_KEY=${KEY}`, "--env", "COPPICE_URL=http://127.0.0.1:3000"];
  return run("runc", "exec", ...environment, NAME, "/usr/bin/coppice", ...words);
}

function inside(sandbox, script) {
  return coppice("exec", sandbox, "--", "sh", "-c", script);
}

function run(program, ...words) {
  return execFileSync(program, words, { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }).trim();
}

function step(what, act) {
  act();
  console.log(`container: ${what}`);
}
