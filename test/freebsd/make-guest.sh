#!/bin/sh
# Makes a Linux for QEMU in a folder: `kernel` and `initrd`, from Debian's packages, which are not installed.
# usage: test/freebsd/make-guest.sh FOLDER
#
# As on FreeBSD's images, root logs in on the serial console without a password. /coppice is on the first disk, which has
# to have a file system: what is there outlives a reboot.
set -eu
cd "$1"
image=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p')
apt-get download -qq -o APT::Sandbox::User=root "$image" busybox-static
for package in *.deb; do dpkg-deb -x "$package" packages; done
mv packages/boot/vmlinuz-* kernel
mkdir -p root/bin root/etc root/dev root/proc root/coppice root/modules
cp packages/bin/busybox root/bin
# In the order of what they need.
modules="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk"
for module in $modules; do cp "$(find packages -name $module.ko)" root/modules; done
cat > root/init << END
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
for module in $modules; do insmod /modules/\$module.ko; done
mount -t ext2 /dev/vda /coppice
exec init
END
chmod +x root/init
echo 'root::0:0::/:/bin/sh' > root/etc/passwd
printf '%s\n' 'ttyS0::respawn:/bin/getty 115200 ttyS0' '::shutdown:/bin/umount /coppice' > root/etc/inittab
(cd root && find . | ../packages/bin/busybox cpio -o -H newc 2> /dev/null) | gzip > initrd
rm -rf ./*.deb packages root
