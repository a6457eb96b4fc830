#!/bin/sh
# Parts of the host's network stack that the stand-in for jail(8) shares with a jail with `ip4.addr`:
#
#   share-stack INIT ADDRESS      gives the jail of that first process the address, and a way to the host
#   share-stack -d INIT
#
# On FreeBSD such a jail has its sockets in the stack of the host, and 127.0.0.1 is its address. On Linux it has a stack
# of its own in which nothing is ever changed (nobody inside may): loopback with the address, and `lo1`, whose other end
# is `lo1.INIT` on the host, and through which all else goes to be routed and filtered there (pfctl.py).
shared=$(dirname "$0")/../state/net/shared
mkdir -p "$shared"
if [ "$1" = -d ]; then
  rm -f "$shared/$2"
  exec ip link delete "lo1.$2"
fi
init=$1 address=$2 link=lo1.$1 hardware=02:c0:00:00:00:01
: > "$shared/$init"
# Both ends have one hardware address, so that nobody has to ask for the other's.
ip -batch - << END || exit 1
link add $link address $hardware type veth peer name lo1 address $hardware netns $init
link set $link arp off up
route add $address/32 dev $link
END
nsenter --net="/proc/$init/ns/net" sh -c "
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
ip -batch -" << END
link set lo up
address add $address/32 dev lo
link set lo1 arp off up
route add default dev lo1 src $address
END
