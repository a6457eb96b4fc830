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
mkdir -m 700 "$directory/state" "$directory/state/jails"
truncate -s 2G "$directory/pool.img"
setsid zfs-fuse --no-daemon --no-kstat-mount --max-arc-size 64 > "$directory/zfs.log" 2>&1 < /dev/null &
for _ in $(seq 200); do
  zpool list -H > /dev/null 2>&1 && break
  sleep 0.02
done
zpool create -m none -O atime=off -o cachefile=none "$pool" "$directory/pool.img"
zfs create -o mountpoint="$directory/jails" "$pool/jails"
