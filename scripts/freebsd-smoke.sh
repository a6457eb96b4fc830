#!/bin/sh
# Tries jail-freebsd on a host that runs FreeBSD 14 or 15:
#
#   scripts/freebsd-smoke.sh POOL [BASE.TXZ]
#
# It has never run there. It says all that the host lacks, builds the agent and runs its own tests, then makes a template and runs the conformance
# suite that the tests run elsewhere, without a network and with one. What it makes is below POOL/coppice-smoke and /var/db/coppice-smoke, which must not
# be there, and are not afterwards.
set -u
pool=${1-} base=${2-/usr/freebsd-dist/base.txz}
case $base in /*) ;; *) base=$PWD/$base ;; esac
cd "$(dirname "$0")/.." || exit 70
directory=/var/db/coppice-smoke
missing=0

lacks() {
  missing=$((missing + 1))
  echo "MISSING  $1 -> $2"
}
is_one() { [ "$(sysctl -n "$1" 2> /dev/null)" = 1 ]; }

[ -n "$pool" ] || { echo "usage: scripts/freebsd-smoke.sh pool [base.txz]" >&2; exit 64; }
[ "$(uname -s)" = FreeBSD ] || { echo "this is $(uname -s): the tests run elsewhere with stand-ins, npm test" >&2; exit 69; }
case $(uname -r) in
14.* | 15.*) ;;
*) echo "untried: FreeBSD $(uname -r)" ;;
esac
[ "$(id -u)" = 0 ] || lacks "root" "run it as root"
command -v node > /dev/null || lacks "Node" "pkg install node24 npm-node24"
command -v python3 > /dev/null || lacks "Python, for the agent's tests" "pkg install python3"
command -v cc > /dev/null || lacks "a C compiler" "install the base system with its toolchain"
command -v npm > /dev/null || lacks "npm" "pkg install npm-node24"
zpool list -H "$pool" > /dev/null 2>&1 || lacks "the ZFS pool $pool" "name one that zpool list shows"
! zfs list -H "$pool/coppice-smoke" > /dev/null 2>&1 || lacks "room" "$pool/coppice-smoke is there: zfs destroy -r it"
[ ! -e "$directory" ] || lacks "room" "$directory is there: remove it"
# Its sweeps and ours would remove each other's anchors and epairs.
! service coppice onestatus > /dev/null 2>&1 || lacks "a host without a server" "service coppice stop"
! jls name 2> /dev/null | grep -q '^e2b-' || lacks "a host without sandboxes" "end those that jls shows, and start no server meanwhile"
[ -e "$base" ] || lacks "$base" "fetch base.txz of $(uname -r | cut -d - -f 1)-RELEASE, or name it as the second argument"
is_one kern.racct.enable || lacks "kern.racct.enable=1" "config/freebsd/loader.conf, then reboot"
devfs rule -s 200 show 2> /dev/null | grep -q include || lacks "devfs ruleset 200" "config/freebsd/devfs.rules, then service devfs restart"
for name in net.inet.ip.forwarding net.link.bridge.pfil_member net.link.bridge.pfil_local_phys; do
  is_one $name || lacks "$name=1" "config/freebsd/sysctl.conf, then service sysctl restart"
done
ifconfig coppicenet0 2> /dev/null | grep -q 'inet 10.78.0.1 ' || lacks "the bridge coppicenet0 with 10.78.0.1" "config/freebsd/rc.conf, then reboot"
pfctl -s rules 2> /dev/null | grep -q 'anchor "coppice/\*"' || lacks 'the anchor "coppice/*" of pf' "config/freebsd/pf.conf, then service pf start"
[ $missing = 0 ] || { echo "$missing missing"; exit 69; }

# config/freebsd.yaml takes it from the environment.
COPPICE_API_KEY=$(openssl rand -hex 24)
export COPPICE_API_KEY
coppice() { node core/bin/coppice.mjs "$@"; }
clean_up() {
  [ ! -e "$directory/daemon.pid" ] || kill "$(cat "$directory/daemon.pid")"
  # An interrupted run leaves jails, which keep their datasets busy.
  jls name path | while read -r name path; do
    case $path in "$directory"/*) jail -R "$name" ;; esac
  done
  # Agents, by their sockets.
  sockstat -qu | awk -v below="$directory/" 'index($0, below) { print $3 }' | sort -u | xargs kill -9
  mount -p | awk -v below="$directory/jails/roots/e2b-" 'index($2, below) == 1 && $3 != "zfs" { print $2 }' | sort -r | xargs -n 1 umount -f
  zfs destroy -rf "$pool/coppice-smoke"
  # -x: nothing that is still mounted.
  rm -rfx "$directory"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
mkdir -m 700 "$directory" && zfs create -o mountpoint=none "$pool/coppice-smoke" || exit 73

settings() {
  printf '{"dataset":"%s/coppice-smoke","directory":"%s/jails","procfs":true,"network":{"kind":"%s"}}' "$pool" "$directory" "$1"
}
cat > "$directory/coppice.yaml" << END
listeners: { api: { host: 127.0.0.1, port: 33000 } }
dataDir: $directory/data
sandboxes: { onShutdown: keep, templates: { base: {} } }
plugins:
  access: { apiKeys: ["\${env:COPPICE_API_KEY}"] }
  sandbox-api: {}
  templates: {}
  envd-compat: {}
  commands: {}
  files: {}
  jail-freebsd: $(settings vnet)
END
failed=0
step() {
  echo "== $*"
  "$@" || { failed=$((failed + 1)); echo "FAILED: $*"; }
}
# By hand, as in docs/freebsd.md, and with a Python.
template() {
  root=$directory/template
  zfs create -o mountpoint="$root" "$pool/coppice-smoke/_template" &&
    tar -xpf "$base" -C "$root" && mkdir "$root/.coppice" &&
    env ASSUME_ALWAYS_YES=yes pkg -r "$root" install -y python311 bash &&
    ln -s python3.11 "$root/usr/local/bin/python3" && ln -s /usr/local/bin/bash "$root/bin/bash" &&
    pw -R "$root" useradd user -u 1000 -m -s /bin/sh &&
    zfs snapshot "$pool/coppice-smoke/_template@base"
}
step npm run setup
step [ -x ".toolchain/agent/$(cat .toolchain/agent/current)/coppice-agent" ]
step node --test agent/dist/*.test.js
step coppice check config/freebsd.yaml
step coppice check "$directory/coppice.yaml"
step template
step coppice doctor "$directory/coppice.yaml"
step coppice conform jail-freebsd "$(settings none)"
step coppice conform jail-freebsd "$(settings vnet)"
# A server of daemon(8) is killed, and stopped, while a sandbox lives: the next one has it.
survives() {
  serve() {
    daemon -f -r -R 1 -S -T coppice-smoke -P "$directory/daemon.pid" node core/bin/coppice.mjs start "$directory/coppice.yaml"
  }
  end_server() {
    kill "$(cat "$directory/daemon.pid")"
    for _ in $(seq 30); do [ -e "$directory/daemon.pid" ] || return 0; sleep 1; done
    return 1
  }
  export COPPICE_URL=http://127.0.0.1:33000 COPPICE_TOKEN=$COPPICE_API_KEY
  until_answered() { for _ in $(seq 60); do coppice ps > /dev/null 2>&1 && return; sleep 1; done; return 1; }
  serve && until_answered && id=$(coppice create --template base) || return
  pkill -KILL -P "$(cat "$directory/daemon.pid")" && sleep 2 && until_answered || return
  end_server && serve && until_answered || return
  coppice exec "$id" -- /bin/bash -l -c true && coppice kill "$id" && end_server
}
step survives
step sh scripts/freebsd-left-over.sh "$directory/jails" "$pool/coppice-smoke"
[ $failed = 0 ] && echo "all of it passed on $(uname -sr)" || { echo "$failed failed"; exit 1; }
