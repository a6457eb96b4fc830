#!/bin/sh
# Makes a host with a ZFS pool out of namespaces of this one, in which it runs: `set-up-host.sh DIRECTORY POOL`.
# Nothing of it is left when they end.
set -e
directory=$1 pool=$2
ip link set lo up
mkdir -p /var/run/zfs /var/lock/zfs
mount -t tmpfs tmpfs /var/run/zfs
mount -t tmpfs tmpfs /var/lock/zfs
# By this the programs of the host know that they are in it.
: > /var/run/zfs/inside
mkdir -m 700 "$directory/state"
for name in jails dying rctl groups usage signals; do mkdir "$directory/state/$name"; done
# Where the stand-in of rctl(8) makes groups that hold jails to their limits: `<controller> <directory>`.
name=$(basename "$directory")
unified=$(findmnt --noheadings --first-only --output TARGET --types cgroup2 || true)
for controller in memory cpu cpuacct pids; do
  mount=$(findmnt --noheadings --first-only --output TARGET --types cgroup --options "$controller" || true)
  if [ -n "$mount" ]; then
    own=$(sed -n "s/^[0-9]*:\\([^:]*,\\)*$controller\\(,[^:]*\\)*://p" /proc/self/cgroup)
    parent=$mount${own%/}/$name
  elif [ -n "$unified" ] && { echo "+$controller" > "$unified/cgroup.subtree_control"; } 2> /dev/null; then
    parent=$unified/$name
    mkdir -p "$parent" && echo "+$controller" > "$parent/cgroup.subtree_control"
  else
    continue
  fi
  mkdir -p "$parent" && echo "$controller $parent"
done > "$directory/state/control-groups"
truncate -s 2G "$directory/pool.img"
setsid zfs-fuse --no-daemon --no-kstat-mount --max-arc-size 64 > "$directory/zfs.log" 2>&1 < /dev/null &
for _ in $(seq 200); do
  zpool list -H > /dev/null 2>&1 && break
  sleep 0.02
done
zpool create -m none -O atime=off -o cachefile=none "$pool" "$directory/pool.img"
# As OpenZFS keeps it back (module/zfs/spa_misc.c, spa_get_slop_space): zfs.sh says from whom.
zfs create -o refreservation=128M "$pool/slop"
zfs create -o mountpoint="$directory/jails" "$pool/jails"
