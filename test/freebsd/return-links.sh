#!/bin/sh
# Gives the host the epairs back that a jail has, before its network of Linux goes: `return-links INIT`, with the jail's
# first process. An interface comes under the name that it has by then. Linux refuses the name of another one, which
# both would have on FreeBSD: state/net/doubles then has it, and that end goes with the jail.
# Source: sys/net/if.c (vnet_if_return, if_vmove), and for who may rename it sys/kern/kern_jail.c (prison_priv_check).
net=$(dirname "$0")/../state/net
rm -f "$net/lent/$1"
inside="nsenter --net=/proc/$1/ns/net ip"
$inside -oneline link show type veth | cut -d ' ' -f 2 | cut -d @ -f 1 | while read -r link; do
  $inside link set "$link" netns $$ 2> /dev/null || echo "$link" >> "$net/doubles"
done
