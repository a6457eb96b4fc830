#!/usr/bin/env bash
# Proves that a new machine needs nothing but Node and npm. In a bare Debian 12 this tree sets itself up, runs its demo and
# the tests that look most at the machine they run on (bare-machine-tests.txt): as root, then as an
# ordinary user, who has what root's set-up installed. Of this host the machine sees the kernel, the network, and how to reach registries.
#
# usage: scripts/ci/bare-machine.sh [ACCOUNT SCRIPT]     runs another script there, to look around
#        scripts/ci/bare-machine.sh --behind-proxy …     its only way out is a proxy that opens TLS, which it trusts
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

# The two ends of its wire to the proxy; no network has these addresses.
PROXY_ADDRESS=198.18.7.1
MACHINE_ADDRESS=198.18.7.2
NETWORK=coppice-bare

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
  for file in /etc/pip.conf ~/.config/pip/pip.conf ~/.pip/pip.conf; do
    [ ! -f "$file" ] || cp "$file" "$machine/etc/pip.conf"
  done
  grep -hE '^(@[^:]+:)?registry *=|^//|proxy *=|^(ca|cafile|strict-ssl) *=' /etc/npmrc ~/.npmrc \
    >"$machine/etc/npmrc" 2>/dev/null || true
  rm -f "$machine/usr/local/share/ca-certificates/test-proxy.crt"
  if [ -n "$proxy" ]; then
    cp "$CACHE/proxy/ca.crt" "$machine/usr/local/share/ca-certificates/test-proxy.crt"
  fi
  chroot "$machine" update-ca-certificates --fresh >/dev/null 2>&1
  env | grep -E "$VARIABLES" | while IFS='=' read -r _ value; do
    [ ! -f "$value" ] || [ -e "$machine$value" ] || install -D -m 644 "$value" "$machine$value"
  done
}

# Copies the tree as it is here, and keeps the downloads of the last set-up.
copy_tree() {
  local tree=$1 clone=$2
  mkdir -p "$clone"
  # npm keeps packages in workspaces, too. Folders without files hurt nobody.
  find "$clone" \( -name node_modules -o -path "$clone/.toolchain" \) -prune -o ! -type d -exec rm -f {} +
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

# Starts the proxy on this host, and makes a network that leads to it alone: sets `proxy` to its URL.
start_proxy() {
  local each
  for each in ip openssl node; do command -v "$each" >/dev/null || give_up "$each is missing"; done
  rm -rf "$CACHE/proxy"
  mkdir -p "$CACHE/proxy"
  stop_proxy
  ip netns add "$NETWORK"
  trap stop_proxy EXIT
  ip link add "$NETWORK" type veth peer name eth0 netns "$NETWORK"
  ip address add "$PROXY_ADDRESS/30" dev "$NETWORK"
  ip link set "$NETWORK" up
  ip -n "$NETWORK" address add "$MACHINE_ADDRESS/30" dev eth0
  ip -n "$NETWORK" link set eth0 up
  ip -n "$NETWORK" link set lo up
  # Ends with its input, which this script holds.
  exec 8> >(exec node "$tree/scripts/ci/tls-opening-proxy.mjs" "$CACHE/proxy" "$PROXY_ADDRESS" 0 \
    >"$CACHE/proxy/port" 2>"$CACHE/proxy/log" 9>&-)
  for each in $(seq 100); do
    [ ! -s "$CACHE/proxy/port" ] || break
    sleep 0.1
  done
  [ -s "$CACHE/proxy/port" ] || { cat "$CACHE/proxy/log"; exit 1; }
  proxy=http://$PROXY_ADDRESS:$(cat "$CACHE/proxy/port")
}

stop_proxy() {
  ip link delete "$NETWORK" 2>/dev/null || true
  ip netns delete "$NETWORK" 2>/dev/null || true
}

# Runs a script of the shell in the tree, as an account.
run_as() {
  local account=$1 script=$2 home variables=()
  home=$(getent passwd "$account" | cut -d: -f6)
  local clone=/srv/$account/coppice
  local downloads=/var/cache/coppice/$account
  mapfile -t variables < <(env | grep -E "$VARIABLES" | grep -vE "${COPPICE_BARE_WITHOUT:-^$}")
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
  # The demo as root takes minutes, which are those of Debian's packages for its template: tests run meanwhile, once it
  # has compiled what they need.
  # shellcheck disable=SC2016 # for the shell inside
  script='
    npm run --silent demo >/tmp/demo-$USER.log 2>&1 &
    demo=$!
    until grep -q "^Coppice serves" /tmp/demo-$USER.log || ! kill -0 $demo 2>/dev/null; do sleep 1; done
    npm test --silent -- $(awk "!/^#/ && NF && (NF == 1 || \$2 == ENVIRON[\"USER\"]) { print \$1 }" scripts/ci/bare-machine-tests.txt)
    wait $demo || { cat /tmp/demo-$USER.log; exit 1; }
    tail -n 20 /tmp/demo-$USER.log
  '
  for account in root "$ACCOUNT"; do
    started=$SECONDS
    say "the demo and tests as $account"
    run_as "$account" "$script" || { say "FAILED as $account"; exit 1; }
    say "passed as $account, in $((SECONDS - started)) s"
  done
  exit
fi

proxy=
if [ "${1:-}" = --behind-proxy ]; then
  shift
  # Where there is a proxy anyway, the machine is behind that one.
  [ -n "${HTTPS_PROXY:-${https_proxy:-}}" ] || proxy=wanted
fi
[ "$(id -u)" = 0 ] || give_up "it needs root"
if ! command -v mmdebstrap >/dev/null || ! command -v ip >/dev/null; then
  command -v apt-get >/dev/null || give_up "mmdebstrap or ip is missing"
  say "installing mmdebstrap and iproute2 …"
  apt-get update -qq -o Acquire::Retries=3 &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Acquire::Retries=3 --no-install-recommends mmdebstrap \
      iproute2 >/dev/null || give_up "mmdebstrap and iproute2 cannot be installed"
fi

tree=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$CACHE/downloads/apt/partial"
exec 9>"$CACHE/lock"
flock 9
key=$(cat "$tree"/scripts/ci/*.sh "$tree"/scripts/toolchain/* "$tree/package-lock.json" | sha256sum | cut -c1-16)
machine=$CACHE/machine-$WEEK-$key
[ -d "$machine" ] || make_machine "$machine"
inside=()
if [ -n "$proxy" ]; then
  start_proxy
  inside=(nsenter "--net=/run/netns/$NETWORK")
  # It trusts the proxy by what its system trusts alone.
  export COPPICE_BARE_WITHOUT='^(NODE_EXTRA_CA_CERTS|SSL_CERT_.*|PIP_CERT|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE)='
  export HTTP_PROXY=$proxy HTTPS_PROXY=$proxy http_proxy=$proxy https_proxy=$proxy
  export NO_PROXY=localhost,127.0.0.1 no_proxy=localhost,127.0.0.1
fi
copy_settings "$machine"
for account in root "$ACCOUNT"; do copy_tree "$tree" "$machine/srv/$account/coppice"; done
# All its processes end with it. In its own session, so that signals to a group stay there, too.
"${inside[@]}" unshare --mount --pid --ipc --uts --fork --kill-child \
  setsid "$tree/scripts/ci/bare-machine.sh" --inside "$machine" "$@"
