import { chmod, lstat, writeFile } from "node:fs/promises";
import { join } from "node:path";

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
export async function refusePackageManagers(directory: string): Promise<void> {
  for (const name of NAMES) {
    const found = await lstat(`/usr/bin/${name}`).catch(() => undefined);
    if (found === undefined) continue;
    await writeFile(join(directory, name), REFUSING);
    await chmod(join(directory, name), 0o755);
  }
}
