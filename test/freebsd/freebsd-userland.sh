# Turns the root in which it is sourced into FreeBSD's: see make-template.sh.
rm -f bin sbin lib lib32 lib64 libx32
host=/compat/usr
mkdir -p compat/usr bin sbin usr/bin usr/sbin usr/local/bin usr/local/etc usr/home
for name in lib lib32 lib64 libx32; do
  [ -L "/$name" ] && ln -s "$host/$name" "$name"
done
for name in lib lib64 libexec share include; do
  [ -e "/usr/$name" ] && ln -s "$host/$name" "usr/$name"
done
place() {
  directory=$1
  shift
  for name; do
    for from in bin sbin; do
      [ -e "/usr/$from/$name" ] && [ ! -e "$directory/$name" ] && ln -s "$host/$from/$name" "$directory/$name"
    done
  done
  true
}
place bin cat chmod cp csh date dd df domainname echo ed expr getfacl hostname kill ln ls mkdir mv nproc pax pgrep pkill \
  ps pwd realpath rm rmdir setfacl sh sleep stty sync tcsh timeout uuidgen
ln -s "$host/bin/test" bin/test
ln -s "$host/bin/test" "bin/["
ln -s "$host/bin/unlink" bin/unlink
ln -s "$host/bin/link" bin/link
place sbin ifconfig md5 mknod mount nologin ping route sha256sum sysctl umount
place usr/bin at awk basename bc bzip2 cal cmp col column comm cut dc diff dirname du env expand false file find fmt fold \
  getconf getent getopt grep egrep fgrep gzip gunzip head hexdump iconv id install ipcrm ipcs join killall last less \
  locale logger login logname m4 make man mesg mkfifo mktemp more nc netstat nice nl nohup od openssl passwd paste patch pr \
  printenv printf readlink renice rev script sed seq sort split ssh strings su tail tar tee time top touch tr true truncate \
  tsort tty uname unexpand uniq unxz users vi w what whereis which who whoami write xargs xz yes zcat base64
place usr/sbin chown chroot cron pw service watch
for name in python3 "python$version"; do
  [ -e "/usr/bin/$name" ] && ln -sf "$host/bin/$name" "usr/local/bin/$name"
done
cat > usr/bin/stat << 'END'
#!/bin/sh
# The options and the formats of FreeBSD's stat(1) that are used here; -c is GNU's.
follow= format=
while getopts Lf:nq option; do
  case $option in
  L) follow=-L ;;
  f) format=$OPTARG ;;
  n | q) ;;
  *) exit 1 ;;
  esac
done
shift $((OPTIND - 1))
format=$(echo "$format" | sed 's/%Lp/%a/g; s/%OLp/%a/g; s/%Su/%U/g; s/%Sg/%G/g; s/%z/%s/g; s/%l/%h/g; s/%m/%Y/g')
exec /compat/usr/bin/stat $follow -c "$format" -- "$@"
END
cat > usr/bin/wc << 'END'
#!/bin/sh
/compat/usr/bin/wc "$@" | sed 's/^/       /'
END
# A script for /bin/bash.
printf '#!/bin/sh\nexec /compat/usr/bin/bash /compat/usr/bin/ldd "$@"\n' > usr/bin/ldd
printf '#!/bin/sh\nexec /compat/usr/bin/setsid --fork "$@"\n' > usr/sbin/daemon
chmod 755 usr/bin/ldd usr/bin/stat usr/bin/wc usr/sbin/daemon
sed 's/^root:x:0:0:root/root:*:0:0:Charlie \&/; s/:x:/:*:/; s,/bin/bash,/bin/sh,' etc/passwd > etc/passwd.new
mv etc/passwd.new etc/passwd
cp etc/passwd etc/passwd-
sed 's/^\([^:]*:[^:]*:[^:]*:[^:]*\):/\1::0:0:/' etc/passwd > etc/master.passwd
chmod 600 etc/master.passwd
rm -rf etc/shadow etc/sudoers etc/pam.d/sudo etc/pam.d/sudo-i
printf 'wheel:*:0:root\ndaemon:*:1:\ntty:*:4:\noperator:*:5:root\nnobody:*:65534:\nuser:*:1000:\n' > etc/group
printf 'default:\\\n\t:path=/sbin /bin /usr/sbin /usr/bin /usr/local/sbin /usr/local/bin ~/bin:\\\n\t:umask=022:\n' > etc/login.conf
rm -f etc/profile
