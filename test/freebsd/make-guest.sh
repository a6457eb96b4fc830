#!/bin/sh
# Makes a Debian for QEMU in a folder, by mmdebstrap: `image` is a disk with its root, `kernel` and `initrd` are its own.
# usage: test/freebsd/make-guest.sh FOLDER
#
# It has the essential packages, a kernel, and BusyBox in the place of systemd, because emulation is slow. As on FreeBSD's
# images, root logs in on the serial console without a password.
set -eu
sources=$(dirname "$0")/../../scripts/toolchain/debian-sources.sh
"$sources" > "$1/sources.list"
[ -s "$1/sources.list" ]
cd "$1"
rm -rf root
without="--dpkgopt=path-exclude=/usr/share"
mmdebstrap --quiet --variant=essential --include=linux-image-cloud-amd64,busybox,mount \
  "$without/doc/*" "$without/man/*" "$without/locale/*" '' root ./sources.list
cp root/boot/vmlinuz-* kernel
cp root/boot/initrd.img-* initrd
chroot root passwd --quiet --delete root
for name in init reboot poweroff; do ln -s /bin/busybox root/sbin/$name; done
cat > root/etc/inittab << INITTAB
::sysinit:/bin/mount -o remount,rw /
ttyS0::respawn:/sbin/agetty 115200 ttyS0
::shutdown:/bin/mount -o remount,ro /
INITTAB
/usr/sbin/mke2fs -q -t ext4 -d root image 1G > /dev/null
rm -rf root sources.list
