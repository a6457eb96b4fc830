#!/bin/sh
# Stands in for ifconfig(8) of FreeBSD 14, with epair(4) and if_bridge(4), as their manuals have them, as far as it is
# asked for. An epair is a pair of Linux's veth; its host's end stays an interface that Linux routes to, and the
# bridge is a table of which member has which address: what arp.sh says then becomes a route to it.
#
#   ifconfig -j JAIL lo0 inet 127.0.0.1/8 up
#   ifconfig epairN create                          prints epairNa
#   ifconfig epairNb ether ADDRESS
#   ifconfig epairNb vnet JAIL
#   ifconfig -j JAIL epairNb inet ADDRESS/LENGTH up
#   ifconfig epairNa group GROUP description TEXT up
#   ifconfig BRIDGE addm EPAIR private EPAIR -learn EPAIR static EPAIR ADDRESS
#   ifconfig BRIDGE
#   ifconfig -g GROUP
#   ifconfig -a                                     of each interface its description and its groups
#   ifconfig epairNa destroy
# Source: sbin/ifconfig/ifconfig.c (main, ifcreate_ioctl, status), ifclone.c (ifclonecreate, clone_destroy), ifbridge.c
# (setbridge_add, setbridge_private, unsetbridge_learn, setbridge_static), ifgroup.c (setifgroup, getifgroups, printgroup).
# Not here: every other interface and option; the numbers of bridges; ND6.
state=$(dirname "$0")/../state
net=$state/net
mkdir -p "$net/groups" "$net/static" "$net/lent"
exec 9> "$net/lock"
flock 9
fail() { echo "ifconfig: $*" >&2; exit 1; }
is_there() { ip link show dev "$1" > /dev/null 2>&1; }
enter() {
  [ -f "$state/jails/$1" ] || fail "jail \"$1\" not found"
  read -r _ init _ < "$state/jails/$1"
}
case "$*" in
"-j "*" lo0 inet "*" up")
  enter "$2"
  # Linux gives its loopback the address by itself.
  exec nsenter --net="/proc/$init/ns/net" ip link set lo up
  ;;
"-j "*" epair"*" inet "*" up")
  enter "$2"
  printf 'address add %s dev %s\nlink set %s up\n' "$5" "$3" "$3" |
    nsenter --net="/proc/$init/ns/net" ip -batch - || fail "ioctl (SIOCAIFADDR): Invalid argument"
  ;;
"-g "*)
  cat "$net/groups/$2" 2> /dev/null
  exit 0
  ;;
-a)
  ip -oneline link show | while read -r _ name words; do
    name=${name%%[@:]*}
    echo "$name: flags=8943<UP,BROADCAST,RUNNING,PROMISC,SIMPLEX,MULTICAST> metric 0 mtu 1500"
    case $words in *"alias "*) printf '\tdescription: %s\n' "${words##*alias }" ;; esac
    printf '\tgroups: %s' "${name%%[0-9]*}"
    for file in "$net"/groups/*; do
      [ -f "$file" ] && while read -r member; do [ "$member" = "$name" ] && printf ' %s' "${file##*/}"; done < "$file"
    done
    echo
  done
  exit 0
  ;;
epair*" create")
  is_there "${1}a" && fail "interface $1 already exists"
  ip link add "${1}a" type veth peer name "${1}b" || fail "SIOCIFCREATE2 ($1): Device not configured"
  echo "${1}a"
  ;;
epair*" ether "*)
  is_there "$1" || fail "interface $1 does not exist"
  ip link set "$1" address "$3" || fail "ioctl (set lladdr): Invalid argument"
  ;;
epair*" vnet "*)
  is_there "$1" || fail "interface $1 does not exist"
  enter "$3"
  ip link set "$1" netns "$init" || fail "ioctl (SIOCSIFVNET): Device not configured"
  : > "$net/lent/$init"
  ;;
epair*" group "*" description "*" up")
  is_there "$1" || fail "interface $1 does not exist"
  echo "$1" >> "$net/groups/$3"
  ip link set "$1" alias "$5" up
  ;;
*" addm epair"*" private epair"*" -learn epair"*" static epair"*)
  is_there "$1" || fail "interface $1 does not exist"
  is_there "$3" || fail "BRDGADD $3: No such file or directory"
  grep -lx "$3" "$net"/static/* > /dev/null 2>&1 && fail "BRDGADD $3: File exists"
  echo "$3" > "$net/static/${10}"
  ;;
epair*" destroy")
  # The end of a name that Linux refuses (return-links.sh) took this one along, which is there on FreeBSD.
  ip link delete "$1" 2> /dev/null && is_known=true
  [ "$is_known" ] || grep -qx "$1" "$net"/groups/* "$net"/static/* 2> /dev/null || fail "interface $1 does not exist"
  for file in "$net"/groups/* "$net"/static/*; do
    [ -f "$file" ] || continue
    grep -vx "$1" "$file" > "$file.new"
    if [ -s "$file.new" ]; then mv "$file.new" "$file"; else rm -f "$file" "$file.new"; fi
  done
  ;;
*" "*) fail "usage: ifconfig interface [parameters]" ;;
*)
  is_there "$1" || fail "interface $1 does not exist"
  ip -4 -oneline address show dev "$1" | sed 's|.* inet \([0-9.]*\)/.*|\tinet \1 netmask 0xfffff000|'
  exit 0
  ;;
esac
