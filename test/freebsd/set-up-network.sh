#!/bin/sh
# Connects a host made by set-up-host.sh to what plays the internet, and makes it the bridge that its rc.conf would:
# `set-up-network.sh PORT`; name servers' port is served outside, too. The addresses outside are those of documentation, and one private one.
set -e
port=$1
ip link add coppicenet0 type bridge
ip address add 10.78.0.1/20 dev coppicenet0
ip link set coppicenet0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv4/fwmark_reflect
setsid unshare --net -- /usr/bin/python3 "$(dirname "$0")/internet.py" "$port" 53 < /dev/null > /dev/null 2>&1 &
internet=$!
until [ "$(readlink /proc/$internet/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add em0 type veth peer name outside netns "$internet"
ip address add 203.0.113.1/24 dev em0
ip link set em0 up
ip route add default via 203.0.113.2
nsenter --net="/proc/$internet/ns/net" ip -batch - << END
link set lo up
address add 203.0.113.2/24 dev outside
address add 203.0.113.3/24 dev outside
address add 10.99.0.9/32 dev lo
link set outside up
route add default via 203.0.113.1
END
