#!/usr/bin/python3 -IS
"""Stands in for pfctl(8) as its manual has it, and for the part of pf(4) behind it that is asked for.

  pfctl [-q] -a ANCHOR -f -            loads the rules of an anchor: all or none of them. Without a
                                       rule the anchor is gone afterwards, whether it was there or not
  pfctl [-q] -a ANCHOR -F all          flushes them, see below
  pfctl -a ANCHOR -s Anchors           the anchors directly below one
  pfctl -a ANCHOR -s rules             what was loaded
  pfctl -s info | rules                that it is enabled; the main ruleset: an anchor `coppice/*`, then a block
  pfctl -i INTERFACE -s states         the states that rules with `keep state` made
  pfctl [-q] [-M] -i INTERFACE -k SOURCE [-k DESTINATION]   kills states

Rules are those of pf.conf(5), each with `quick`. As pf does, it looks a packet up in the states before it goes
through rules, a rule that passes TCP matches SYN alone (`flags S/SA` is the default), and a state goes on when the
rules change. What an epair sends meets the rules of that epair, then those of its bridge; what is sent to it meets
those of the bridge alone, as if_bridge(4) has it with net.link.bridge.pfil_local_phys=1.

The rules become nftables.

Two generations, by the file `pfctl-release` of the host's state: 14 and 15. `-F all` empties the rules, then the tables
(sbin/pfctl/pfctl_table.c: pfctl_clear_tables and pfctl_table in 14, pfctl_do_clear_tables in 15). pfr_clr_tables
(sys/netpfil/pf/pf_table.c) fails with ENOENT where there is no such anchor, which an anchor without tables is once its
rules are gone. Both say so (pfctl_radix.c, pfr_strerror); 14 ends with 0 all the same, 15 with 1.
Rules that were replaced hold their tables until the purge thread frees them, and the tables hold the anchor: it is listed
for that long, HELD_SECONDS here and about ten on FreeBSD. Not done here: tables that other anchors refer to, `persist`,
the main ruleset, and reading of any rule that Coppice does not write.

Source: sbin/pfctl/pfctl.c (main, pfctl_rules, pfctl_show_anchors, pfctl_show_rules, pfctl_show_status,
pfctl_show_states, pfctl_net_kill_states), and sbin/pfctl/pf_print_state.c (print_state).
"""
import fcntl
import getopt
import ipaddress
import json
import os
import re
import subprocess
import sys
import time

STATE = os.path.join(os.path.dirname(sys.argv[0]), "..", "state", "pf")
RELEASE = os.path.join(STATE, "..", "pfctl-release")
HELD_SECONDS = 2
KEY = "ip saddr . th sport . ip daddr . th dport . meta l4proto"
REVERSED = "ip daddr . th dport . ip saddr . th sport . meta l4proto"
RULE = re.compile(
    r"(?P<action>block drop|block return|pass) (?P<way>in|out) quick on (?P<link>[a-z0-9_]+)"
    r"(?: (?P<family>inet6?))?(?: proto \{ (?P<protocols>[a-z, ]+) \})?"
    r" (?:all|from (?P<negated>! )?(?P<source>\S+) to (?P<destination>\S+)(?: port (?P<port>\d+))?)"
    r"(?: (?P<state>no state|keep state \(if-bound, max \d+\)))?"
)
TABLE = re.compile(r"table <(\w+)> const \{ ([0-9./, ]+) \}")


def fail(*lines):
    for line in lines:
        print(line, file=sys.stderr)
    sys.exit(1)


def nft(*words, text=None):
    return subprocess.run(["/usr/sbin/nft", *words], input=text, check=True, capture_output=True, text=True).stdout


def address_match(field, text, tables):
    if text == "any":
        return ""
    if text == "(self)":
        return "fib daddr type local"
    networks = tables[text.strip("<>")] if text.startswith("<") else [ipaddress.ip_network(text)]
    merged = ", ".join(str(network) for network in ipaddress.collapse_addresses(networks))
    return f"ip {field} {{ {merged} }}"


def translate(rule, tables):
    """One rule of pf, as rules of nftables in a chain."""
    parts = []
    if rule["link"].startswith("epair"):
        parts.append(f'iifname "{rule["link"]}"')
    if rule["family"]:
        parts.append("meta nfproto " + {"inet": "ipv4", "inet6": "ipv6"}[rule["family"]])
    if rule["source"] and rule["source"] != "any":
        parts.append("ip saddr " + ("!= " if rule["negated"] else "") + rule["source"])
    if rule["destination"]:
        parts.append(address_match("daddr", rule["destination"], tables))
    if rule["port"]:
        parts.append(f"th dport {rule['port']}")
    match = " ".join(part for part in parts if part)
    protocols = rule["protocols"]
    within = f"meta l4proto {{ {protocols} }} {match}" if protocols else match
    if rule["action"] == "block drop":
        return [f"{within} drop"]
    if rule["action"] == "block return":
        answer = "meta mark set 1 reject"
        return [f"{within} meta l4proto tcp {answer} with tcp reset", f"{within} {answer}"]
    if rule["state"] == "no state":
        return [f"{within} accept"]
    keep = f"add @states {{ {KEY} }} accept"
    lines = {
        "tcp": f"meta l4proto tcp {match} tcp flags & (syn | ack) == syn {keep}",
        "udp": f"meta l4proto udp {match} {keep}",
    }
    if protocols:
        return [lines[protocol] for protocol in protocols.split(", ")]
    return [*lines.values(), f"{match} meta l4proto != {{ tcp, udp }} accept"]


CHAINS = ("member", "bridge_in", "bridge_out")


def chain_of(rule):
    return "member" if rule["link"].startswith("epair") else f"bridge_{rule['way']}"


def parse(text):
    """@return rules of nftables by the chain that they belong to."""
    chains = {name: [] for name in CHAINS}
    tables = {}
    for number, line in enumerate(text.splitlines(), 1):
        table = TABLE.fullmatch(line)
        rule = RULE.fullmatch(line)
        try:
            if table:
                tables[table[1]] = [ipaddress.ip_network(each.strip(), strict=False) for each in table[2].split(",")]
            elif rule:
                chains[chain_of(rule)] += translate(rule.groupdict(), tables)
            else:
                raise ValueError(line)
        except (KeyError, ValueError):
            fail(f"stdin:{number}: syntax error", "pfctl: Syntax error in config file: pf rules not loaded")
    return chains


def anchors():
    return sorted(name.replace("%", "/") for name in os.listdir(STATE) if name not in ("lock", "held"))


def path_of(anchor):
    return os.path.join(STATE, anchor.replace("/", "%"))


def has_tables(anchor):
    return anchor in anchors() and any(TABLE.fullmatch(line) for line in rules_of(anchor).splitlines())


def remove_anchor(anchor):
    """@return whether it had tables, which hold it for a while."""
    held = os.path.join(STATE, "held")
    had_tables = has_tables(anchor)
    if had_tables:
        os.makedirs(held, exist_ok=True)
        with open(os.path.join(held, anchor.replace("/", "%")), "w", encoding="utf8"):
            pass
    if anchor in anchors():
        os.unlink(path_of(anchor))
        apply()
    return had_tables


def held_anchors():
    held = os.path.join(STATE, "held")
    for name in os.listdir(held) if os.path.isdir(held) else []:
        path = os.path.join(held, name)
        if time.time() - os.stat(path).st_mtime < HELD_SECONDS:
            yield name.replace("%", "/")
        else:
            os.unlink(path)


def is_old():
    try:
        with open(RELEASE, encoding="utf8") as file:
            return int(file.read()) < 15
    except FileNotFoundError:
        return False


def rules_of(anchor):
    with open(path_of(anchor), encoding="utf8") as file:
        return file.read()


def apply():
    chains = {name: [] for name in CHAINS}
    for anchor in anchors():
        for chain, rules in parse(rules_of(anchor)).items():
            chains[chain] += rules
    # pf does not filter its own answers. A reset has the mark of the packet that it answers (fwmark_reflect).
    answers = ["meta mark 1 accept", "icmp type destination-unreachable fib saddr type local accept"]
    heads = {
        "member": ("prerouting", -150, chains["member"]),
        "bridge_in": (
            "prerouting",
            -140,
            ['iifname != "epair*" accept', f"{KEY} @states accept", *chains["bridge_in"], "drop"],
        ),
        "bridge_out": (
            "postrouting",
            50,
            ['oifname != "epair*" accept', *answers, f"{REVERSED} @states accept", *chains["bridge_out"], "drop"],
        ),
    }
    states = "type ipv4_addr . inet_service . ipv4_addr . inet_service . inet_proto; flags dynamic; size 65535;"
    text = f"table inet pf {{ set states {{ {states} }}; }}\n"
    for chain, (hook, priority, rules) in heads.items():
        lines = "\n".join(rules)
        text += f"table inet pf {{ chain {chain} {{ type filter hook {hook} priority {priority}\n }}; }}\n"
        text += f"flush chain inet pf {chain}\n"
        text += f"table inet pf {{ chain {chain} {{\n{lines}\n}}; }}\n"
    nft("-f", "-", text=text)


def states():
    """Source, port, destination, port and protocol of each."""
    try:
        listed = json.loads(nft("-j", "list", "set", "inet", "pf", "states"))
    except subprocess.CalledProcessError:
        return []
    elements = next(each["set"] for each in listed["nftables"] if "set" in each).get("elem", [])
    return [(each["elem"]["val"] if "elem" in each else each)["concat"] for each in elements]


def kill(hosts):
    networks = [ipaddress.ip_network(host, strict=False) for host in hosts]

    for state in states():
        if all(ipaddress.ip_address(end) in network for end, network in zip((state[0], state[2]), networks)):
            nft("delete", "element", "inet", "pf", "states", "{ " + " . ".join(map(str, state)) + " }")


def show_states():
    for source, source_port, destination, port, protocol in states():
        ends = f"{destination}:{port} <- {source}:{source_port}"
        print(f"coppicenet0 {protocol} {ends}       ESTABLISHED:ESTABLISHED")


def show(what, anchor):
    if what == "info":
        print("Status: Enabled for 0 days 00:00:01           Debug: Urgent")
    elif what == "rules" and anchor is None:
        print('anchor "coppice/*" all')
        print("block drop quick on coppicenet0 all")
        print("block drop quick inet from 10.78.0.0/20 to any")
    elif what == "rules":
        print(rules_of(anchor) if anchor in anchors() else "", end="")
    elif what == "Anchors":
        for name in sorted({*anchors(), *held_anchors()}):
            if name.startswith(f"{anchor}/"):
                print(f"  {name}")
    elif what == "states":
        show_states()
    else:
        fail(f"pfctl: Unknown show modifier '{what}'")


def main():
    try:
        pairs, rest = getopt.getopt(sys.argv[1:], "a:f:F:i:k:s:qM")
    except getopt.GetoptError as error:
        fail(f"pfctl: {error}", "usage: pfctl [-qM] [-a anchor] [-f file] [-F modifier] [-i interface] [-k host] [-s modifier]")
    if rest:
        fail("usage: pfctl [-qM] [-a anchor] [-f file] [-F modifier] [-i interface] [-k host] [-s modifier]")
    options = dict(pairs)
    anchor = options.get("-a")
    os.makedirs(STATE, exist_ok=True)
    with open(os.path.join(STATE, "lock"), "w", encoding="utf8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if "-f" in options:
            text = sys.stdin.read()
            parse(text)
            if text.strip() == "":
                remove_anchor(anchor)
            else:
                with open(path_of(anchor), "w", encoding="utf8") as file:
                    file.write(text)
                apply()
        elif "-F" in options:
            if not remove_anchor(anchor):
                if not is_old():
                    fail("pfctl: Anchor does not exist.")
                print("pfctl: Anchor or Ruleset does not exist.", file=sys.stderr)
        elif "-k" in options:
            kill([value for name, value in pairs if name == "-k"])
        elif "-s" in options:
            show(options["-s"], anchor)


main()
