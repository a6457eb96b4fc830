#!/bin/sh
# Stands in for arp(8) of FreeBSD 14, as its manual has it, where there is none, as far as it is asked for:
#
#   arp -S ADDRESS HARDWARE     an entry that stays, in place of any other
#   arp -d ADDRESS              ends with 1, and with what netlink(4) says, when there is none
#
# The bridge's entry for the hardware address (ifconfig.sh) says which interface leads there; without one it fails.
# Source: usr.sbin/arp/arp.c (main) and arp_netlink.c (set_nl, delete_nl).
# Not here: entries of other interfaces, an address that no interface leads to (`cannot locate`, and 0), -a, -f, proxies,
# expiry, and that -S deletes first and says what it found.
static=$(dirname "$0")/../state/net/static
case "$*" in
"-S "*)
  link=$(cat "$static/$3" 2> /dev/null) || { echo "arp: set $2: No such file or directory" >&2; exit 1; }
  printf 'route replace %s/32 dev %s\nneighbour replace %s lladdr %s dev %s nud permanent\n' \
    "$2" "$link" "$2" "$3" "$link" > "$static/.batch.$$"
  ip -batch "$static/.batch.$$"
  code=$?
  rm "$static/.batch.$$"
  exit $code
  ;;
"-d "*)
  ip route delete "$2/32" 2> /dev/null || { echo "arp: delete $2: No such file or directory" >&2; exit 1; }
  echo "$2 ($2) deleted"
  ;;
*) echo "usage: arp -d hostname, arp -S hostname ether_addr" >&2; exit 1 ;;
esac
