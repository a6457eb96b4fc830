#!/bin/sh
# Stands in for devfs(8) of FreeBSD 14, as its manual has it, where there is none: `devfs rule -s NUMBER show`, of the
# ruleset of config/freebsd/devfs.rules. What it hides is up to jail.c.
# Source: sbin/devfs/rule.c (rule_show).
# Not here: other verbs, other rulesets, and rules in force: jail.c makes /dev.
[ "$1 $2 $4" = "rule -s show" ] && [ $# = 4 ] || { echo "usage: devfs rule -s number show" >&2; exit 1; }
[ "$3" = 200 ] && printf '100 include 1\n200 path null unhide\n'
exit 0
