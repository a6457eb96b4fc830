#!/bin/sh
# Takes away what a reboot takes away, for a host made by set-up-host.sh: `reboot.sh DIRECTORY`. Processes, jails, their
# limits, mounts, interfaces, addresses and anchors are gone; datasets and files, sockets included, are left.
directory=$1
pkill -KILL -f '^[^ ]*coppice-agent listen 3'
for name in $("$directory/bin/jls" name); do "$directory/bin/jail" -q -R "$name"; done
for rule in $("$directory/bin/rctl" | cut -d : -f 1,2 | sort -u); do "$directory/bin/rctl" -r "$rule"; done
for _ in $(seq 50); do
  points=$(findmnt --noheadings --raw --output TARGET | grep "^$directory/d/roots/" | sort -r)
  [ -n "$points" ] || break
  for point in $points; do umount --force "$point" 2> /dev/null; done
  sleep 0.1
done
for link in $(ip -oneline link show | sed -n 's/^[0-9]*: \(epair[0-9]*a\)[@:].*/\1/p'); do
  ip link delete "$link"
done
nft delete table inet pf 2> /dev/null
rm -rf "$directory/state/pf" "$directory/state/net" "$directory/state/dying/"*
[ -z "$points" ]
