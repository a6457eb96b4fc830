#!/usr/bin/env bash
# Boots a root file system with systemd, as a machine of its own: in name spaces and control groups of its own, which are
# removed when it has ended.
#
# usage: scripts/ci/boot-systemd.sh ROOT
set -euo pipefail

# Where hierarchies of control groups are mounted here.
hierarchies() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/self/mounts; }

if [ "$1" != --inside ]; then
  group=coppice-machine-$$
  for hierarchy in $(hierarchies); do
    mkdir "$hierarchy/$group"
    # A group of cpuset starts without any.
    for file in cpuset.cpus cpuset.mems; do
      [ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$group/$file"
    done
  done
  remove_groups() {
    for hierarchy in $(hierarchies); do
      # Those that were killed at the end may still be in it.
      for _ in $(seq 50); do
        find "$hierarchy/$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
        [ -d "$hierarchy/$group" ] || break
        sleep 0.1
      done
    done
  }
  trap remove_groups EXIT
  (
    for hierarchy in $(hierarchies); do echo "$BASHPID" >"$hierarchy/$group/cgroup.procs"; done
    exec unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child "$0" --inside "$1"
  )
  exit
fi
root=$2

mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
# Settings of the kernel are the host's, which systemd would set as it finds right; those of the network are its own.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
mount -o remount,bind,rw "$root/proc/sys/net"
mount -t sysfs -o ro sysfs "$root/sys"
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
  # As the host has them: version 1 each, or beside version 2.
  mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$root/sys/fs/cgroup"
  while read -r _ where type options _; do
    case $type in cgroup | cgroup2) ;; *) continue ;; esac
    target=$root$where
    mkdir -p "$target"
    mount -t "$type" -o "$(tr ',' '\n' <<<"$options" | grep -vE '^(rw|ro|relatime|nosuid|nodev|noexec|nsdelegate)$' | sed 's/^name=/none,name=/' | paste -sd,)" cgroup "$target"
  done < <(grep ' /sys/fs/cgroup/' /proc/self/mounts)
fi

mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty fuse; do
  [ ! -e "/dev/$device" ] || { : >"$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"; }
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for directory in dev/shm run tmp; do mount -t tmpfs tmpfs "$root/$directory"; done

cd "$root"
mkdir -p mnt/host
pivot_root . mnt/host
umount --lazy mnt/host
ip link set lo up
hostname machine
exec env --ignore-environment container=coppice-ci PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
