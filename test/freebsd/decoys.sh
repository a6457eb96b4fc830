#!/bin/sh
# Objects that look like those of jail-freebsd but are not, on a host made by set-up-host.sh:
#
#   decoys.sh plant DIRECTORY OWNER   makes it: a pool of its own, and datasets, a jail, rules and links beside ours
#   decoys.sh show DIRECTORY          prints all there is to see of it, each time the same unless somebody touched it
#
# OWNER is coppice:owner of the installation under test: by that alone nobody can tell the pool from ours. On a host
# without a network there are no links and no anchor.
set -e
verb=$1 directory=$2 owner=$3
PATH=$directory/bin:$PATH
is_connected() { ip link show dev coppicenet0 > /dev/null 2>&1; }
own="-o coppice:owner=$owner"
else="-o coppice:owner=somebody-else"
creating="-o coppice:state=creating -o coppice:id=decoy -o coppice:template=base"

plant() {
  truncate -s 128M "$directory/decoy.img"
  zpool create -m none -O atime=off -o cachefile=none decoy "$directory/decoy.img"
  zfs create -o mountpoint="$directory/decoy" decoy/jails
  zfs create decoy/jails/_template
  echo system > "$directory/decoy/_template/file"
  zfs snapshot decoy/jails/_template@base
  zfs clone $own $creating decoy/jails/_template@base decoy/jails/e2b-decoy1
  zfs clone $own -o coppice:state=retained -o mountpoint=none decoy/jails/_template@base decoy/jails/e2b-decoy2
  zfs clone $else $creating decoy/jails/_template@base decoy/jails/e2b-decoy3
  zfs create $own -o coppice:state=running decoy/jails/volume-decoy
  echo theirs | tee "$directory/decoy/e2b-decoy1/file" > "$directory/decoy/volume-decoy/file"
  zfs snapshot -o coppice:snapshot=kept decoy/jails/e2b-decoy1@kept

  zfs clone $else $creating coppice/jails/_template@base coppice/jails/e2b-decoy4
  zfs create coppice/jails/e2b-decoy5
  zfs snapshot -o coppice:snapshot=kept coppice/jails/e2b-decoy5@kept
  zfs create $else -o coppice:state=retained coppice/jails/e2b-decoy6
  zfs create $else -o coppice:state=running coppice/jails/volume-decoy
  zfs create coppice/jails/decoy
  zfs create $own $creating coppice/jails/decoy/e2b-decoy7
  zfs create $own $creating -o mountpoint="$directory/decoy8" coppice/e2b-decoy8
  echo theirs | tee "$directory/jails/e2b-decoy5/file" "$directory/jails/volume-decoy/file" > "$directory/decoy8/file"

  echo "e2b-decoy9 { path = $directory/decoy8; persist; vnet; stop.timeout = 0; }" > "$directory/decoy.conf"
  # Without a /dev it keeps what it is given.
  "$directory/bin/jail" -q -f "$directory/decoy.conf" -c e2b-decoy9 < /dev/null > /dev/null 2>&1
  rctl -a jail:e2b-decoy9:maxproc:deny=77
  if is_connected; then
    ifconfig epair7 create > /dev/null
    ifconfig epair7a group coppice_000000_ description e2b-decoy9 up
    echo "pass in quick on epair7a inet all no state" | pfctl -q -a decoy/epair7a -f -
  fi
  # Written data counts as used once it is in the pool.
  zfs snapshot decoy/jails@decoy
  zfs snapshot coppice/jails/decoy@decoy
}

properties() {
  for names in all guid,createtxg; do zfs get -Hp -r -o name,property,value,source $names "$1"; done
}

show() {
  zpool history -il decoy
  properties decoy
  # All datasets share the free space of the pool.
  for name in jails/e2b-decoy4 jails/e2b-decoy5 jails/e2b-decoy6 jails/volume-decoy jails/decoy e2b-decoy8; do
    properties "coppice/$name"
  done | grep -v "	available	"
  zpool history coppice | grep decoy
  find "$directory/decoy" "$directory/decoy8" "$directory"/jails/*decoy* -printf '%p %y %m %u %g %s %t\n' -type f -exec sha256sum {} \;
  "$directory/bin/jls" name jid path | grep decoy
  rctl | grep decoy
  mount -p | grep decoy
  is_connected || return 0
  ifconfig -g coppice_000000_
  pfctl -a decoy/epair7a -s rules
  ip -oneline link show dev epair7a
}

$verb
