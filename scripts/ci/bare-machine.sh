#!/usr/bin/env bash
# Proves that a new machine needs nothing but Node and npm. In a bare Debian 12 this tree sets itself up, runs its demo and
# the tests that look most at the machine they run on (bare-machine-tests.txt): as root, with the linter, then as an
# ordinary user, who has what root's set-up installed. Of this host the machine sees the kernel, the network, and how to reach registries.
#
# usage: scripts/ci/bare-machine.sh [ACCOUNT SCRIPT]     runs another script there, to look around
#
# The machine is kept in XDG_CACHE_HOME with what set-up installed, until set-up changes or a week ends. Then it is made
# anew, and downloads come from the cache beside it.
set -euo pipefail

PACKAGES=nodejs,npm,ca-certificates
ACCOUNT=tester
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/coppice-bare-machine
WEEK=$(date +%G-%V)
# Variables that name registries, proxies and certificates.
VARIABLES='^(npm_config_|NPM_CONFIG_|PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|TRUSTED_HOST|PROXY|DEFAULT_TIMEOUT)=|NODE_EXTRA_CA_CERTS=|REQUESTS_CA_BUNDLE=|CURL_CA_BUNDLE=|SSL_CERT_|(https?|no|HTTPS?|NO)_(proxy|PROXY)=|CI=)'

say() { echo "bare machine: $*"; }

# Where it cannot run, CI fails, and no other caller does.
give_up() {
  say "not run: $1"
  [ "${CI:-false}" = false ] || exit 1
  exit 0
}

# Debian with Node and npm, and nothing more.
make_debian() {
  say "installing Debian 12 with $PACKAGES …"
  rm -f "$CACHE"/debian-*.tar
  # On another system there are none, and mmdebstrap uses its own.
  "$tree/scripts/toolchain/debian-sources.sh" | grep ' bookworm' >"$CACHE/sources.list" || true
  local from=()
  [ ! -s "$CACHE/sources.list" ] || from=("$CACHE/sources.list")
  mmdebstrap --quiet --variant=minbase --include="$PACKAGES" bookworm "$CACHE/unfinished.tar" "${from[@]}"
  mv "$CACHE/unfinished.tar" "$1"
}

make_machine() {
  local debian="$CACHE/debian-$WEEK.tar"
  [ -f "$debian" ] || make_debian "$debian"
  rm -rf "$CACHE"/machine-* "$CACHE/unfinished"
  mkdir -p "$CACHE/unfinished"
  tar --extract --numeric-owner --directory="$CACHE/unfinished" --file="$debian"
  chroot "$CACHE/unfinished" useradd --create-home --shell /bin/bash "$ACCOUNT"
  mv "$CACHE/unfinished" "$1"
}

# Settings that name registries; no others of this host.
copy_settings() {
  local machine=$1 file value
  cp /etc/resolv.conf /etc/hosts "$machine/etc/"
  {
    apt-config dump | grep '^Acquire::'
    echo 'Binary::apt::APT::Keep-Downloaded-Packages "true";'
  } >"$machine/etc/apt/apt.conf.d/99host"
  cp -r /usr/local/share/ca-certificates "$machine/usr/local/share/" 2>/dev/null || true
  chroot "$machine" update-ca-certificates >/dev/null 2>&1
  for file in /etc/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf; do
    [ ! -f "$file" ] || cp "$file" "$machine/etc/pip.conf"
  done
  grep -hE '^(@[^:]+:)?registry *=|^//|proxy *=|^(ca|cafile|strict-ssl) *=' /etc/npmrc ~/.npmrc \
    >"$machine/etc/npmrc" 2>/dev/null || true
  env | grep -E "$VARIABLES" | while IFS='=' read -r _ value; do
    [ ! -f "$value" ] || [ -e "$machine$value" ] || install -D -m 644 "$value" "$machine$value"
  done
}

# Copies the tree as it is here, and keeps the downloads of the last set-up.
copy_tree() {
  local tree=$1 clone=$2
  mkdir -p "$clone"
  find "$clone" -mindepth 1 -maxdepth 1 ! -name node_modules ! -name .toolchain -exec rm -rf {} +
  git -C "$tree" ls-files -z --cached --others --exclude-standard |
    tar --create --directory="$tree" --null --files-from=- | tar --extract --directory="$clone" --no-same-owner
}

# Makes the machine the root of this process, which must already have its own mount and PID namespaces.
become_machine() {
  local machine=$1 each
  mount --make-rprivate /
  mount --bind "$machine" "$machine"
  cd "$machine"
  mount -t proc proc proc
  for each in sys dev; do mount --rbind "/$each" "$each"; done
  for each in run dev/shm; do mount -t tmpfs tmpfs "$each"; done
  mkdir -p mnt/host var/cache/coppice
  mount --bind "$CACHE/downloads" var/cache/coppice
  mount --bind "$CACHE/downloads/apt" var/cache/apt/archives
  # Not chroot alone: a process whose root is not that of its mounts may make no user namespace.
  pivot_root . mnt/host
  umount --lazy mnt/host
  find /tmp /var/tmp -mindepth 1 -delete
  hash -r
}

# Runs a script of the shell in the tree, as an account.
run_as() {
  local account=$1 script=$2 home variables=()
  home=$(getent passwd "$account" | cut -d: -f6)
  local clone=/srv/$account/coppice
  local downloads=/var/cache/coppice/$account
  mapfile -t variables < <(env | grep -E "$VARIABLES")
  variables+=("HOME=$home" "USER=$account" "LANG=C.UTF-8" "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
  variables+=("npm_config_cache=$downloads/npm" "PIP_CACHE_DIR=$downloads/pip")
  # The ordinary user finds root's downloads there.
  [ -d "$downloads" ] || cp -r /var/cache/coppice/root "$downloads" 2>/dev/null || mkdir -p "$downloads"
  chown -R "$account:" "$clone" "$downloads"
  env --ignore-environment --chdir="$clone" "${variables[@]}" \
    setpriv --reuid="$account" --regid="$account" --init-groups bash -euc "$script"
}

if [ "${1:-}" = --inside ]; then
  become_machine "$2"
  if [ -n "${3:-}" ]; then
    run_as "$3" "$4"
    exit
  fi
  # shellcheck disable=SC2016 # for the shell inside
  script='
    npm run --silent demo
    npm test --silent -- $(awk "!/^#/ && NF && (NF == 1 || \$2 == ENVIRON[\"USER\"]) { print \$1 }" scripts/ci/bare-machine-tests.txt)
    [ "$USER" != root ] || npm run --silent lint
  '
  for account in root "$ACCOUNT"; do
    started=$SECONDS
    say "the demo and tests as $account"
    run_as "$account" "$script" || { say "FAILED as $account"; exit 1; }
    say "passed as $account, in $((SECONDS - started)) s"
  done
  exit
fi

[ "$(id -u)" = 0 ] || give_up "it needs root"
if ! command -v mmdebstrap >/dev/null; then
  command -v apt-get >/dev/null || give_up "mmdebstrap is missing"
  say "installing mmdebstrap …"
  apt-get update -qq -o Acquire::Retries=3 &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Acquire::Retries=3 --no-install-recommends mmdebstrap \
      >/dev/null || give_up "mmdebstrap cannot be installed"
fi

tree=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$CACHE/downloads/apt/partial"
exec 9>"$CACHE/lock"
flock 9
key=$(cat "$tree"/scripts/ci/*.sh "$tree"/scripts/toolchain/* "$tree/package-lock.json" | sha256sum | cut -c1-16)
machine=$CACHE/machine-$WEEK-$key
[ -d "$machine" ] || make_machine "$machine"
copy_settings "$machine"
for account in root "$ACCOUNT"; do copy_tree "$tree" "$machine/srv/$account/coppice"; done
# All its processes end with it. In its own session, so that signals to a group stay there, too.
unshare --mount --pid --ipc --uts --fork --kill-child \
  setsid "$tree/scripts/ci/bare-machine.sh" --inside "$machine" "$@"
