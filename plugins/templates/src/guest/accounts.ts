import type { Sandbox } from "@coppice/core/backend";
import { BuildFailure } from "../model/build-record.js";
import { failureText, runScript } from "./guest-run.js";

/** Exit code of a script that had nothing to change. */
const UNCHANGED = 10;
const NAME = /^[a-z_][a-z0-9_-]{0,31}$/i;

/**
 * Makes an account with a home of the skeleton. Images without useradd get lines in the files that it would write.
 * Parameters: its name, and `sudo` to let it become root without a password, where there is sudo.
 */
const MAKE_ACCOUNT = `
set -e
name=$1 changed=
has() { # a line for the name is in a file
  local first rest
  while IFS=: read -r first rest || [ -n "$first" ]; do [ "$first" != "$name" ] || return 0; done < "$1"
  return 1
}
add() { # a line to a file, which may lack its last line feed
  [ -z "$(tail -c 1 "$1")" ] || echo >> "$1"
  printf '%s\\n' "$2" >> "$1"
}
for file in /etc/passwd /etc/group; do [ -f $file ] || : > $file; done
if ! has /etc/passwd; then
  changed=1
  if command -v useradd > /dev/null; then
    if has /etc/group; then own=(-N -g "$name"); else own=(-U); fi
    # The day of the password is that of the other branch, on whatever day this runs.
    SOURCE_DATE_EPOCH=1641600000 useradd -M -d "/home/$name" -s /bin/bash "\${own[@]}" -- "$name" >&2
  elif command -v pw > /dev/null; then # FreeBSD, where the first one would be 1001
    id=(-u 1000)
    while IFS=: read -r _ _ number _; do [ "$number" != 1000 ] || id=(); done < /etc/passwd
    pw useradd -n "$name" "\${id[@]}" -d "/home/$name" -s /bin/bash >&2
  else
    id=1000
    for file in /etc/passwd /etc/group; do
      while IFS=: read -r _ _ number _; do
        case $number in '' | *[!0-9]* | ??????*) continue ;; esac
        [ "$number" -lt "$id" ] || [ "$number" -ge 60000 ] || id=$((number + 1))
      done < $file
    done
    has /etc/group || add /etc/group "$name:x:$id:"
    while IFS=: read -r first _ number _; do [ "$first" != "$name" ] || group=$number; done < /etc/group
    add /etc/passwd "$name:x:$id:$group::/home/$name:/bin/bash"
    [ ! -f /etc/shadow ] || has /etc/shadow || add /etc/shadow "$name:!:19000:0:99999:7:::"
  fi
fi
while IFS=: read -r first _ uid gid _ home _; do [ "$first" != "$name" ] || break; done < /etc/passwd
if [ -n "$changed" ] || [ ! -d "$home" ]; then
  changed=1
  mkdir -p -- "$home"
  shopt -s dotglob nullglob
  for entry in /etc/skel/*; do
    [ -e "$home/\${entry##*/}" ] || cp -R -- "$entry" "$home/"
  done
  chown -R -h -- "$uid:$gid" "$home"
fi
for sudoers in /etc/sudoers /usr/local/etc/sudoers; do
  [ "$2" = sudo ] && command -v sudo > /dev/null && [ -f $sudoers ] || continue
  line="$name ALL=(ALL:ALL) NOPASSWD: ALL" found=
  while IFS= read -r each || [ -n "$each" ]; do [ "$each" != "$line" ] || found=1; done < $sudoers
  [ -n "$found" ] || { changed=1; add $sudoers "$line"; }
done
[ -n "$changed" ] || exit ${UNCHANGED}
`;

/**
 * Makes an account of a sandbox, unless there is one of that name.
 * @returns false when nothing had to be changed.
 * @throws BuildFailure `failed to create user: …`
 */
export async function makeAccount(
  sandbox: Sandbox,
  name: string,
  { isSudoer, signal }: { readonly isSudoer: boolean; readonly signal: AbortSignal },
): Promise<boolean> {
  if (!NAME.test(name))
    throw new BuildFailure(`failed to create user: invalid user name '${name}'`, undefined);
  const args = [name, isSudoer ? "sudo" : ""];
  const result = await runScript(sandbox, MAKE_ACCOUNT, { args, signal });
  if (result.exit.code === UNCHANGED) return false;
  if (result.exit.code !== 0)
    throw new BuildFailure(`failed to create user: ${failureText(result)}`, undefined);
  return true;
}

/** Makes a directory and its missing parents, and gives the new ones to a user. Parameters: its path, `uid:gid`. */
const MAKE_DIRECTORY = `
set -e
path=$1 new=
[ ! -d "$path" ] || exit ${UNCHANGED}
while [ ! -d "$path" ]; do new=$path path=\${path%/*}; path=\${path:-/}; done
mkdir -p -- "$1"
chown -R -h -- "$2" "$new"
`;

/**
 * Makes a working directory where it is missing.
 * @param path an absolute one. @returns true when it was missing. @throws BuildFailure, SandboxError for an unknown user
 */
export async function makeWorkdir(
  sandbox: Sandbox,
  { path, user, signal }: { readonly path: string; readonly user: string; readonly signal: AbortSignal },
): Promise<boolean> {
  const { uid, gid } = await sandbox.user(user);
  const result = await runScript(sandbox, MAKE_DIRECTORY, { args: [path, `${uid}:${gid}`], signal });
  if (result.exit.code === UNCHANGED) return false;
  if (result.exit.code !== 0)
    throw new BuildFailure(`failed to create workdir: ${failureText(result)}`, undefined);
  return true;
}
