import { createHash, randomBytes } from "node:crypto";
import {
  chmod,
  copyFile,
  lstat,
  mkdir,
  readdir,
  readlink,
  rename,
  symlink,
  writeFile,
} from "node:fs/promises";
import { dirname, join } from "node:path";
import { DEFAULT_PATH } from "@coppice/core/backend";
import { SYSTEM_DIRECTORIES } from "../launcher/confined-program.js";
import type { HostPython } from "./host-python.js";
import type { PreparedTemplate } from "../launcher/sandbox-record.js";
import type { TemplateOwners } from "../launcher/user-namespace.js";

type Bind = PreparedTemplate["binds"][number];

/** Incremented when the template of an unchanged host changes. */
const LAYOUT = 7;
const USER_ID = 1000;
const PYTHON_DIRECTORY = "/opt/coppice/python";
const PYTHON_BASE = "/opt/coppice/python-base";
const NODE = "/opt/coppice/node";
const HOST_PYTHON = "/usr/bin/python3";
/** The operator's part of /usr; sandboxes have a separate one. */
const LOCAL = "/usr/local";

// Files of the host's /etc that programs of its /usr need. None is secret; files that are not world-readable are left
// out anyway.
const HOST_CONFIGURATION = `
  alternatives ca-certificates ca-certificates.conf chromium.d crypto-policies debian_version fonts
  gai.conf host.conf inputrc java-11-openjdk java-17-openjdk java-21-openjdk ld.so.cache ld.so.conf
  ld.so.conf.d locale.alias localtime login.defs lsb-release magic magic.mime mime.types networks
  os-release perl pki/ca-trust/extracted pki/tls/certs pki/tls/openssl.cnf protocols rpc security services
  shells ssl/certs ssl/openssl.cnf terminfo timezone
`
  .trim()
  .split(/\s+/);

const LOCAL_SUDO = "usr/local/lib/sudo";
const LOCAL_DIRECTORIES = ["bin", "etc", "games", "include", "lib", "sbin", "share", "src"];

const HOME = "home/user";
const DIRECTORIES: readonly (readonly [path: string, mode: number])[] = [
  ["dev", 0o755],
  ["etc", 0o755],
  ["etc/sudoers.d", 0o755],
  ["etc/pam.d", 0o755],
  ["etc/profile.d", 0o755],
  ["home", 0o755],
  [HOME, 0o755],
  ["media", 0o755],
  ["mnt", 0o755],
  ["opt", 0o755],
  ["proc", 0o555],
  ["root", 0o700],
  ["run", 0o755],
  ["run/lock", 0o1777],
  ["srv", 0o755],
  ["sys", 0o555],
  ["tmp", 0o1777],
  ["usr", 0o755],
  ["var", 0o755],
  ["var/cache", 0o755],
  ["var/lib", 0o755],
  ["var/log", 0o755],
  ["var/tmp", 0o1777],
];

const SYSTEM_ACCOUNTS = `daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`;
const GROUP = `root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
mail:x:8:
sudo:x:27:user
www-data:x:33:
shadow:x:42:
utmp:x:43:
staff:x:50:
users:x:100:
user:x:${USER_ID}:
nogroup:x:65534:
`;
const SHADOW = ["root", "daemon", "bin", "sys", "mail", "www-data", "user", "nobody"]
  .map((name) => `${name}:*:19000:0:99999:7:::\n`)
  .join("");

const SUDOERS = `Defaults secure_path="${DEFAULT_PATH}"
root ALL=(ALL:ALL) ALL
@includedir /etc/sudoers.d
`;
/** The account \`user\` may become root without a password. */
const PERMIT_ALL = ["auth", "account", "password", "session"]
  .map((type) => `${type} required pam_permit.so\n`)
  .join("");
const PROFILE = `if [ "$(id -u)" -eq 0 ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
  PATH=/usr/local/bin:/usr/bin:/bin
fi
export PATH
for script in /etc/profile.d/*.sh; do
  [ -r "$script" ] && . "$script"
done
unset script
`;

const FILES: readonly (readonly [path: string, text: string, mode: number])[] = [
  ["group", GROUP, 0o644],
  ["shadow", SHADOW, 0o600],
  ["nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n", 0o644],
  ["profile", PROFILE, 0o644],
  ["bash.bashrc", "[ -z \"$PS1\" ] || PS1='\\u@\\h:\\w\\$ '\n", 0o644],
  ["sudoers", SUDOERS, 0o440],
  ["sudoers.d/user", "user ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440],
  ["pam.d/other", PERMIT_ALL, 0o644],
  ["pam.d/sudo", PERMIT_ALL, 0o644],
  ["pam.d/sudo-i", PERMIT_ALL, 0o644],
  ["pam.d/su", PERMIT_ALL, 0o644],
  ["pam.d/su-l", PERMIT_ALL, 0o644],
  ["environment", "", 0o644],
];

interface BaseTemplateOptions {
  readonly name: string;
  readonly parent: string;
  /** A Python with ipykernel, which becomes the sandbox's `python3`. */
  readonly python?: HostPython | undefined;
  /**
   * Host path of a Node.js, which becomes the sandbox's `node`. Other files in its directory stay hidden: they are the
   * operator's.
   */
  readonly node?: string | undefined;
  readonly owners: TemplateOwners;
}

/**
 * Builds a template from this host without a download: its /usr, and a generated /etc that reveals only what programs
 * need. Built once while the host does not change.
 */
export async function prepareBaseTemplate(options: BaseTemplateOptions): Promise<PreparedTemplate> {
  const { name, parent, python, node } = options;
  const systemBinds = await systemDirectories();
  const path = join(parent, `${name}-${await digestOf(options)}`);
  if (!(await exists(path))) {
    const making = `${path}.making-${randomBytes(4).toString("hex")}`;
    await mkdir(making, { recursive: true, mode: 0o700 });
    await makeRoot(join(making, "root"), options.owners);
    await makeLocal(join(making, "local"), python);
    if (node !== undefined) {
      await makeParents(join(making, "root"), dirname(NODE));
      await makeFile(join(making, "root", NODE), "", 0o755);
      await symlink(NODE, join(making, "local/bin/node"));
    }
    if (options.owners.needsOwnSudo) await makeSudo(join(making, "root"), join(making, "local"));
    if (python !== undefined) await makePython(join(making, "root"), python);
    await rename(making, path);
  }
  return {
    name,
    lowers: [join(path, "root")],
    binds: [
      ...systemBinds,
      ...(python === undefined ? [] : pythonBinds(python)),
      ...(node === undefined ? [] : [{ target: NODE, source: node }]),
    ],
    overlays: [{ target: LOCAL, lowers: [join(path, "local")] }],
  };
}

async function digestOf({ python, node, owners }: BaseTemplateOptions): Promise<string> {
  const parts: unknown[] = [LAYOUT, python, node, owners.description, await lacksPythonName()];
  for (const name of [
    ...HOST_CONFIGURATION.map((each) => `/etc/${each}`),
    ...SYSTEM_DIRECTORIES.map((each) => `/${each}`),
  ]) {
    const found = await lstat(name).catch(() => undefined);
    parts.push([name, found?.mtimeMs, found?.size]);
  }
  return createHash("sha256").update(JSON.stringify(parts)).digest("hex").slice(0, 16);
}

async function systemDirectories(): Promise<Bind[]> {
  const binds: Bind[] = [{ target: "/usr", source: "/usr" }];
  for (const name of SYSTEM_DIRECTORIES) {
    const found = await lstat(`/${name}`).catch(() => undefined);
    if (found?.isDirectory()) binds.push({ target: `/${name}`, source: `/${name}` });
  }
  return binds;
}

async function makeRoot(root: string, owners: TemplateOwners): Promise<void> {
  await makeDirectory(root, 0o755);
  for (const [path, mode] of DIRECTORIES) await makeDirectory(join(root, path), mode);
  await owners.giveToUser(join(root, HOME), USER_ID);
  for (const name of SYSTEM_DIRECTORIES) {
    const found = await lstat(`/${name}`).catch(() => undefined);
    if (found?.isSymbolicLink()) await symlink(await readlink(`/${name}`), join(root, name));
    if (found?.isDirectory()) await makeDirectory(join(root, name), 0o755);
  }
  await symlink("/run", join(root, "var/run"));
  await symlink("/run/lock", join(root, "var/lock"));
  await symlink("/proc/self/mounts", join(root, "etc/mtab"));
  await copyConfiguration(join(root, "etc"));
  const shell = (await exists("/bin/bash")) ? "bash" : "sh";
  await makeFile(join(root, "etc/passwd"), accounts(shell, owners.hasAccounts), 0o644);
  for (const [path, text, mode] of FILES) await makeFile(join(root, "etc", path), text, mode);
}

/** With a single account, `root` is another name of it, so that programs which look root up still run. */
function accounts(shell: string, hasAccounts: boolean): string {
  const ids = `${USER_ID}:${USER_ID}`;
  const user = `user:x:${ids}::/home/user:/bin/${shell}\n`;
  const root = `root:x:${hasAccounts ? "0:0" : ids}:root:/root:/bin/${shell}\n`;
  return (hasAccounts ? [root, SYSTEM_ACCOUNTS, user] : [user, root, SYSTEM_ACCOUNTS]).join("");
}

/**
 * Copies `sudo` and `su`: the owner of the host's is not mapped in a user namespace, so their setuid bits have no
 * effect there.
 */
async function makeSudo(root: string, local: string): Promise<void> {
  const plugins = await firstOf(["/usr/libexec/sudo", "/usr/lib/sudo"]);
  for (const name of ["sudo", "su"]) {
    const program = await firstOf([`/usr/bin/${name}`, `/bin/${name}`]);
    if (program === undefined || (name === "sudo" && plugins === undefined)) continue;
    await copyFile(program, join(local, "bin", name));
    await chmod(join(local, "bin", name), 0o4755);
  }
  if (plugins === undefined) return;
  await copyReadable(plugins, join(local, "lib/sudo"));
  const names = ["sudoers_policy", "sudoers_io", "sudoers_audit"];
  const lines = names.map((name) => `Plugin ${name} /${LOCAL_SUDO}/sudoers.so\n`);
  await makeFile(join(root, "etc/sudo.conf"), lines.join(""), 0o644);
}

async function firstOf(paths: readonly string[]): Promise<string | undefined> {
  for (const path of paths) if (await exists(path)) return path;
  return undefined;
}

async function copyConfiguration(target: string): Promise<void> {
  for (const name of HOST_CONFIGURATION) {
    const source = join("/etc", name);
    if (!(await exists(source))) continue;
    await makeParents(target, dirname(name));
    await copyReadable(source, join(target, name));
  }
}

/** Copies world-readable files, links and directories, owned by root; other kinds are skipped. */
async function copyReadable(source: string, target: string): Promise<void> {
  const found = await lstat(source);
  if (found.isSymbolicLink()) {
    await symlink(await readlink(source), target);
  } else if ((found.mode & 0o004) !== 0 && found.isFile()) {
    await copyFile(source, target);
    await chmod(target, found.mode & 0o755);
  } else if ((found.mode & 0o004) !== 0 && found.isDirectory()) {
    await makeDirectory(target, 0o755);
    const names = await readdir(source);
    await Promise.all(names.map((name) => copyReadable(join(source, name), join(target, name))));
  }
}

/** Builds the /usr/local of sandboxes, which comes first in PATH. */
async function makeLocal(local: string, python: HostPython | undefined): Promise<void> {
  await makeDirectory(local, 0o755);
  for (const name of LOCAL_DIRECTORIES) await makeDirectory(join(local, name), 0o755);
  await refusePackageManagers(join(local, "bin"));
  if (python === undefined) {
    if (await lacksPythonName()) await symlink(HOST_PYTHON, join(local, "bin/python"));
    return;
  }
  // Copies, not links: Python looks for its libraries beside the path that it was called by.
  for (const name of ["python3", "python", `python${python.version}`, "pip3", "pip"]) {
    const command = `${PYTHON_DIRECTORY}/bin/python3${name.startsWith("pip") ? " -m pip" : ""}`;
    await makeFile(join(local, "bin", name), `#!/bin/sh\nexec ${command} "$@"\n`, 0o755);
  }
}

/** True when this host has Python as `python3` only, as Debian does; programs also call `python`. */
async function lacksPythonName(): Promise<boolean> {
  return (await exists(HOST_PYTHON)) && !(await exists("/usr/bin/python"));
}

/** Builds a venv with the same packages at a fixed path, independent of the host's. */
async function makePython(root: string, python: HostPython): Promise<void> {
  const directory = join(root, PYTHON_DIRECTORY);
  await makeParents(root, `${PYTHON_DIRECTORY}/bin`);
  await makeParents(root, PYTHON_BASE);
  const base = baseInside(python);
  await symlink(join(base, "bin", `python${python.version}`), join(directory, "bin/python3"));
  await symlink("python3", join(directory, "bin/python"));
  if (!python.isVenv) return;
  await makeParents(root, packagesInside(python));
  // With system-site-packages, pip installs for the user, who can write there.
  const settings = `home = ${base}/bin\ninclude-system-site-packages = true\nversion = ${python.version}\n`;
  await makeFile(join(directory, "pyvenv.cfg"), settings, 0o644);
}

function pythonBinds(python: HostPython): Bind[] {
  const binds: Bind[] = [];
  if (!isInSystem(python.basePrefix)) binds.push({ target: PYTHON_BASE, source: python.basePrefix });
  if (python.isVenv) binds.push({ target: packagesInside(python), source: python.packages });
  return binds;
}

function baseInside({ basePrefix }: HostPython): string {
  return isInSystem(basePrefix) ? basePrefix : PYTHON_BASE;
}

function packagesInside({ version }: HostPython): string {
  return `${PYTHON_DIRECTORY}/lib/python${version}/site-packages`;
}

/** True for a path of this host that every sandbox has: in /usr, but not in /usr/local. */
export function isInSystem(path: string): boolean {
  const isLocal = path === LOCAL || path.startsWith(`${LOCAL}/`);
  return path === "/usr" || (path.startsWith("/usr/") && !isLocal);
}

async function makeParents(root: string, path: string): Promise<void> {
  let at = root;
  for (const part of path.split("/").filter((each) => each !== "" && each !== ".")) {
    at = join(at, part);
    if (!(await exists(at))) await makeDirectory(at, 0o755);
  }
}

async function makeDirectory(path: string, mode: number): Promise<void> {
  await mkdir(path);
  // Independent of the server's umask.
  await chmod(path, mode);
}

async function makeFile(path: string, text: string, mode: number): Promise<void> {
  await writeFile(path, text, { flag: "w" });
  await chmod(path, mode);
}

async function exists(path: string): Promise<boolean> {
  return lstat(path).then(
    () => true,
    () => false,
  );
}

/** Of Linux distributions, as far as they change the /usr that they are in. */
const NAMES = ["apt-get", "apt", "dnf", "microdnf", "yum", "zypper", "apk", "pacman"];

/** Stands for a package manager of the host: its own words would be of lock files and of a root who is none. */
const REFUSING = `#!/bin/sh
name=\${0##*/}
for word; do
  case $word in
  install | reinstall | update | upgrade | full-upgrade | dist-upgrade | remove | purge | autoremove | add | del | -S*)
    {
      echo "$name: no packages can be installed in this sandbox: it is made of the server's own /usr, which is read-only."
      echo "$name: The server may still be building this template: a sandbox that is created when it is ready has packages."
      echo "$name: Otherwise build a template of your own (Template.build of the SDK), or ask the server's operator for one."
    } >&2
    exit 100
    ;;
  esac
done
exec "/usr/bin/$name" "$@"
`;

/** Makes the package managers of this host say why they do not work, in a directory before theirs in PATH. */
async function refusePackageManagers(directory: string): Promise<void> {
  for (const name of NAMES) {
    const found = await lstat(`/usr/bin/${name}`).catch(() => undefined);
    if (found === undefined) continue;
    await writeFile(join(directory, name), REFUSING);
    await chmod(join(directory, name), 0o755);
  }
}
