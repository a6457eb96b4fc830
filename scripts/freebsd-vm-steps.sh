# The steps of scripts/freebsd-vm.mjs on FreeBSD. `#@ SECONDS NAME` begins one; what stands before the first is part of each.
# `sh -eu` runs each as root in /coppice, which is the tree. One whose name begins with `reboot` ends with the login
# after it. /dev/vtbd2 is an empty disk. Nothing here has run on FreeBSD yet.
export PATH=/sbin:/bin:/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin HOME=/root ASSUME_ALWAYS_YES=yes
base=/var/tmp/base.txz
etc=/usr/local/etc/coppice
[ ! -e $etc/environment ] || . $etc/environment
export COPPICE_TOKEN=${COPPICE_API_KEY-none}
coppice() { node core/bin/coppice.mjs "$@"; }
outside() { route -n get default | sed -n 's/.*interface: //p'; }
post() { node -e 'fetch("http://127.0.0.1:3000/" + process.argv[1], { method: "POST", headers: { "x-api-key": process.env.COPPICE_TOKEN, "content-type": "application/json" }, body: process.argv[2] }).then((answer) => { console.log(answer.status); process.exitCode = answer.ok ? 0 : 1; })' "$@"; }
ready() {
  for _ in $(seq 60); do
    ! fetch -qo /dev/null http://127.0.0.1:9464/readyz || return 0
    sleep 1
  done
  tail -n 50 /var/log/messages
  return 1
}
# `!` alone does not end a step.
fails() { ! "$@"; }
server() { pgrep -P "$(cat /var/run/coppice.pid)"; }
# The sandbox answers, in the jail that it had, and what was started in it still runs.
lives() {
  [ "$(jls -j "e2b-$(cat /root/sandbox)" jid)" = "$(cat /root/jid)" ]
  coppice exec "$(cat /root/sandbox)" -- /bin/sh -c 'kill -0 $(cat /tmp/pid) && uname -sr'
}
#@ 600 base.txz, of the system as it is on the image
uname -a
tar -C / -cf $base --exclude '^dev/?*' --exclude '^tmp/?*' --exclude '^var/tmp/?*' --exclude '^var/run/?*' --exclude '^usr/local/?*' \
  --exclude '^usr/lib/debug' --exclude '^usr/src' --exclude '^usr/tests' --exclude '^usr/ports' \
  bin dev etc lib libexec mnt proc root sbin tmp usr var
#@ 1800 packages, settings and the pool of the host
pkg install -y node24 npm-node24 python3 bash
cat config/freebsd/loader.conf >> /boot/loader.conf
cat config/freebsd/sysctl.conf >> /etc/sysctl.conf
cat config/freebsd/devfs.rules >> /etc/devfs.rules
cat config/freebsd/rc.conf >> /etc/rc.conf
sed "s/\"em0\"/\"$(outside)\"/" config/freebsd/pf.conf > /etc/pf.conf
kldload -n zfs
zpool create -f -m none tank /dev/vtbd2
#@ 600 reboot, for loader.conf
shutdown -r now
#@ 1800 command 1: npm ci and the compiler
npm ci --ignore-scripts
node_modules/.bin/tsc -b
#@ 300 command 2: the agent, by this system's own compiler
cc -std=c11 -D_GNU_SOURCE -O2 -static -o /tmp/agent \
  $(find agent/native -name '*.c' ! -path '*/testing/*' ! -name fuzz-frames.c)
code=0; /tmp/agent || code=$?
[ $code = 64 ]
#@ 30 command 3: resource accounting
[ "$(sysctl -n kern.racct.enable)" = 1 ]
[ -z "$(rctl)" ]
#@ 30 command 4: rules
rctl -a jail:x:memoryuse:deny=64M jail:x:maxproc:deny=9
[ "$(rctl -u jail:x jail:x | grep -c ^cputime=)" = 2 ]
rctl -r jail:x
rctl -r jail:x 2>&1 | grep 'No such process'
#@ 30 command 5: an anchor that is not there
code=0; said=$(pfctl -q -a coppice/none -F all 2>&1) || code=$?
echo "$code $said"
case "$code $said" in '0 '* | *'Anchor does not exist'*) ;; *) exit 1 ;; esac
: | pfctl -q -a coppice/none -f -
#@ 30 command 6: parameters of jails
[ "$(sysctl -N security.jail.param | grep -c allow)" -gt 20 ]
#@ 30 command 7: a jail without processes
jail -c name=t path=/ persist vnet
ifconfig -j t lo0 inet 127.0.0.1/8 up
code=0; ps -J t -o state= || code=$?
[ $code = 1 ]
code=0; pkill -STOP -j t || code=$?
[ $code = 1 ]
jail -r t
#@ 30 command 8: an epair on the bridge
[ "$(ifconfig epair10010 create)" = epair10010a ]
ifconfig epair10010b ether 02:c0:0a:4e:00:0a
ifconfig coppicenet0 addm epair10010a private epair10010a -learn epair10010a static epair10010a 02:c0:0a:4e:00:0a
arp -S 10.78.0.10 02:c0:0a:4e:00:0a
arp -d 10.78.0.10
code=0; said=$(arp -d 10.78.0.10 2>&1) || code=$?
ifconfig epair10010a destroy
echo "$code $said" | grep -E '^1 .*(No such file or directory|cannot locate)'
#@ 30 an interface that a living jail has renamed goes with its other end
jail -c name=t path=/ persist vnet
ifconfig epair10011 create
ifconfig epair10011b vnet t
jexec t ifconfig epair10011b name "$(outside)"
ifconfig epair10011a destroy
fails jexec t ifconfig "$(outside)"
jail -r t
ifconfig -l
[ "$(ifconfig -l | tr ' ' '\n' | grep -cx "$(outside)")" = 1 ]
fails ifconfig epair10011a
#@ 60 command 9: how often daemon(8) starts a command whose child holds its pipe
(cd /tmp && daemon -r -R 2 -S -P d.pid sh -c 'sleep 300 & sleep 1')
sleep 6
# Once: it is not started again while its child holds the pipe. More often: it is.
ps ax | grep '[s]leep 300'
for _ in 1 2 3; do
  pkill -F /tmp/d.pid || true
  pkill -f 'sleep 300' || true
  sleep 2
done
#@ 1800 set-up
npm run setup
#@ 7200 command 10: scripts/freebsd-smoke.sh, with vnet
sh scripts/freebsd-smoke.sh tank $base
#@ 1800 the configuration and a template
install -d -m 700 $etc
(umask 077 && echo "COPPICE_API_KEY=$(openssl rand -hex 24)" > $etc/environment)
. $etc/environment
export COPPICE_API_KEY
zfs create -o mountpoint=/jails tank/jails
# By hand, as in docs/freebsd.md: it needs no umoci, which Go would have to compile.
sed -e 's|zroot/jails|tank/jails|' -e '/^    code-interpreter-v1:/d' -e '/^    recipes:/,/^    images:/d' \
  -e 's|^  templates: #.*|  templates: {}|' config/freebsd.yaml > $etc/freebsd.yaml
zfs create tank/jails/_template
tar -xpf $base -C /jails/_template
mkdir /jails/_template/.coppice
pkg -r /jails/_template install -y bash
ln -s /usr/local/bin/bash /jails/_template/bin/bash
pw -R /jails/_template useradd user -u 1000 -m -s /bin/sh
zfs snapshot tank/jails/_template@base
install -m 0555 config/freebsd/coppice.rc /usr/local/etc/rc.d/coppice
sysrc coppice_dir=/coppice
service coppice check
service coppice doctor
#@ 120 service coppice start
service coppice start
ready
service coppice status
#@ 120 a sandbox
coppice create --ttl 3h > /root/sandbox
jls -j "e2b-$(cat /root/sandbox)" jid > /root/jid
coppice exec "$(cat /root/sandbox)" -- /bin/bash -l -c 'id; logname; sleep 9999 > /dev/null 2>&1 & echo $! > /tmp/pid'
lives
#@ 120 service coppice restart, with the sandbox
old=$(server)
service coppice restart
ready
[ "$(server)" != "$old" ]
lives
#@ 120 the server is killed, with the sandbox
old=$(server)
kill -9 "$old"
for _ in $(seq 30); do [ "$(server)" = "" ] || [ "$(server)" = "$old" ] || break; sleep 1; done
[ "$(server)" != "$old" ]
ready
lives
#@ 120 service coppice stop and start, with the sandbox
service coppice stop
fails fetch -qo /dev/null http://127.0.0.1:9464/readyz
jls -j "e2b-$(cat /root/sandbox)"
service coppice start
ready
lives
#@ 120 a second sandbox is stopped
coppice create --ttl 3h > /root/stopped
coppice exec "$(cat /root/stopped)" -- /bin/sh -c 'echo kept > /tmp/kept'
post "sandboxes/$(cat /root/stopped)/pause" '{"memory":false}'
zfs get -H -o value coppice:state "tank/jails/e2b-$(cat /root/stopped)" | grep stopped
#@ 600 reboot, with both
shutdown -r now
#@ 300 what is there after it
ready
service coppice status
coppice ps
fails jls -j "e2b-$(cat /root/sandbox)"
fails coppice exec "$(cat /root/sandbox)" -- true
post "sandboxes/$(cat /root/stopped)/resume" '{"timeout":600}'
[ "$(coppice exec "$(cat /root/stopped)" -- cat /tmp/kept)" = kept ]
new=$(coppice create --ttl 10m)
coppice exec "$new" -- /bin/bash -l -c 'uname -sr'
coppice kill "$new" "$(cat /root/stopped)"
#@ 120 nothing is left
for _ in $(seq 60); do
  left=$(
    jls name | grep ^e2b- || true
    mount -p | grep /e2b- || true
    zfs list -H -o name -r tank/jails | grep /e2b- || true
    rctl | grep jail:e2b- || true
    pfctl -q -a coppice -s Anchors || true
    ifconfig -l | tr ' ' '\n' | grep '^epair1' || true
  )
  [ -n "$left" ] || break
  sleep 1
done
echo "$left"
[ -z "$left" ]
