#!/bin/sh
# Makes a template that stands in for one with FreeBSD's base: `make-template.sh DATASET PYTHON-VERSION PYTHON-BASE
# USERLAND`. The packages of its Python are the host's, mounted by nullfs, and so are its programs. With the userland
# `linux` that is all of /usr; the accounts are what the conformance suite and E2B's clients ask for. With `freebsd` the
# host's /usr is to be mounted at /compat/usr, and a program is where FreeBSD's base system has it, or nowhere: no
# /bin/bash, no setsid, chown in /usr/sbin, packages below /usr/local. `stat` has the options of FreeBSD's, `wc` its
# blanks, accounts are in master.passwd and wheel, and login.conf is there.
# Source: bin/Makefile, sbin/Makefile, usr.bin/Makefile, usr.sbin/Makefile, etc/master.passwd, etc/group, usr.bin/stat.
# Not here: options that the host's programs have beyond FreeBSD's, beside those of `stat`; pwd.db.
set -e
dataset=$1 version=$2 base=$3 userland=$4
zfs create "$dataset"
root=$(zfs get -H -o value mountpoint "$dataset")
cd "$root"
umask 022
mkdir -p .coppice dev proc sys usr etc/sudoers.d etc/pam.d etc/ssl etc/skel home/user mnt opt/python/bin "opt/python/lib/python$version/site-packages" opt/python-base root run/e2b run/lock srv \
  var/cache var/lib var/log var/tmp tmp
chmod 700 root
chmod 555 proc sys
chmod 1777 tmp var/tmp run/lock
chown 1000:1000 home/user
for name in bin sbin lib lib32 lib64 libx32; do
  [ -L "/$name" ] && ln -s "usr/$name" "$name"
done
ln -s /run var/run
ln -s /proc/self/mounts etc/mtab
printf true > run/e2b/.E2B_SANDBOX
for name in alternatives ca-certificates.conf ld.so.cache ld.so.conf ld.so.conf.d login.defs mime.types os-release \
  protocols services shells ssl/certs ssl/openssl.cnf terminfo localtime; do
  [ -e "/etc/$name" ] && cp -a "/etc/$name" "etc/$name"
done
cat > etc/passwd << END
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
user:x:1000:1000::/home/user:/bin/bash
END
cp etc/passwd etc/passwd-
cat > etc/group << END
root:x:0:
daemon:x:1:
bin:x:2:
tty:x:5:
mail:x:8:
sudo:x:27:user
shadow:x:42:
utmp:x:43:
users:x:100:
user:x:1000:
nogroup:x:65534:
END
printf '%s:*:19000:0:99999:7:::\n' root daemon user nobody > etc/shadow
chmod 600 etc/shadow
printf 'passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n' > etc/nsswitch.conf
printf '127.0.0.1\tlocalhost\n' > etc/hosts
printf 'root ALL=(ALL:ALL) ALL\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n' > etc/sudoers
chmod 440 etc/sudoers
for name in other sudo sudo-i su su-l; do
  for type in auth account password session; do echo "$type required pam_permit.so"; done > "etc/pam.d/$name"
done
cat > etc/profile << 'END'
if [ "$(id -u)" -eq 0 ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
  PATH=/usr/local/bin:/usr/bin:/bin
fi
export PATH
END
ln -s "$base/bin/python$version" opt/python/bin/python3
printf 'home = %s/bin\ninclude-system-site-packages = true\nversion = %s\n' "$base" "$version" > opt/python/pyvenv.cfg
[ "$userland" != freebsd ] || . "$(dirname "$0")/freebsd-userland.sh"
zfs snapshot "$dataset@base"
