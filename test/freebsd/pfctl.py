#!/usr/bin/python3 -IS
"""Stands in for pfctl(8) of FreeBSD 14 where there is none, and for the part of pf(4) behind it that is asked for.

  pfctl [-q] -a ANCHOR -f -            loads the rules of an anchor, all or none of them
  pfctl [-q] -a ANCHOR -F all          flushes them
  pfctl -a ANCHOR -s Anchors           the anchors directly below one
  pfctl -a ANCHOR -s rules             what was loaded
  pfctl -s info | rules                that it is enabled; the main ruleset: an anchor `coppice/*`, then a block
  pfctl [-i INTERFACE] -s states       the states that rules with `keep state` made
  pfctl [-q] [-M] -i INTERFACE -k SOURCE [-k DESTINATION]   kills states

Rules are those of pf.conf(5), each with `quick`. As pf does, it looks a packet up in the states before it goes
through rules, a rule that passes TCP matches SYN alone (`flags S/SA` is the default), and a state goes on when the
rules change. What an epair sends meets the rules of that epair, then those of its bridge; what is sent to it meets
those of the bridge alone, as if_bridge(4) has it with net.link.bridge.pfil_local_phys=1. Its rules become nftables.
"""
import fcntl
import getopt
import ipaddress
import json
import os
import re
import subprocess
import sys

STATE = os.path.join(os.path.dirname(sys.argv[0]), "..", "state", "pf")
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
    """One rule of pf, as rules of nftables."""
    parts = []
    if rule["link"].startswith("epair"):
        parts.append(f'iifname "{rule["link"]}"')
    if rule["family"]:
        parts.append("meta nfproto " + {"inet": "ipv4", "inet6": "ipv6"}[rule["family"]])
    if rule["protocols"]:
        parts.append(f"meta l4proto {{ {rule['protocols']} }}")
    if rule["source"] and rule["source"] != "any":
        parts.append("ip saddr " + ("!= " if rule["negated"] else "") + rule["source"])
    if rule["destination"]:
        parts.append(address_match("daddr", rule["destination"], tables))
    if rule["port"]:
        parts.append(f"th dport {rule['port']}")
    match = " ".join(part for part in parts if part)
    if rule["action"] == "block drop":
        return [f"{match} drop"]
    if rule["action"] == "block return":
        match += " meta mark set 1"
        return [f"{match} meta l4proto tcp reject with tcp reset", f"{match} reject"]
    if rule["state"] == "no state":
        return [f"{match} accept"]
    keep = f"add @states {{ {KEY} }} accept"
    return [
        f"{match} tcp flags & (syn | ack) == syn {keep}",
        f"{match} meta l4proto udp {keep}",
        f"{match} meta l4proto != {{ tcp, udp }} accept",
    ]


def parse(text):
    """@return rules of nftables by the chain that they belong to."""
    chains = {"member": [], "bridge_in": [], "bridge_out": []}
    tables = {}
    for number, line in enumerate(text.splitlines(), 1):
        table = TABLE.fullmatch(line)
        rule = RULE.fullmatch(line)
        try:
            if table:
                tables[table[1]] = [ipaddress.ip_network(each.strip(), strict=False) for each in table[2].split(",")]
            elif rule:
                is_member = rule["link"].startswith("epair")
                chain = "member" if is_member else "bridge_in" if rule["way"] == "in" else "bridge_out"
                chains[chain] += translate(rule.groupdict(), tables)
            else:
                raise ValueError(line)
        except (KeyError, ValueError):
            fail(f"stdin:{number}: syntax error", "pfctl: Syntax error in config file: pf rules not loaded")
    return chains


def anchors():
    return sorted(name.replace("%", "/") for name in os.listdir(STATE) if name != "lock")


def rules_of(anchor):
    with open(os.path.join(STATE, anchor.replace("/", "%")), encoding="utf8") as file:
        return file.read()


def apply():
    chains = {"member": [], "bridge_in": [], "bridge_out": []}
    for anchor in anchors():
        for chain, rules in parse(rules_of(anchor)).items():
            chains[chain] += rules
    # What a rule answers with, pf does not filter: it has the mark of what it answers (fwmark_reflect).
    heads = {
        "member": ("prerouting", -150, [], []),
        "bridge_in": ("prerouting", -140, ['iifname != "epair*" accept', f"{KEY} @states accept"], ["drop"]),
        "bridge_out": (
            "postrouting",
            50,
            ['oifname != "epair*" accept', "meta mark 1 accept", f"{REVERSED} @states accept"],
            ["drop"],
        ),
    }
    states = "type ipv4_addr . inet_service . ipv4_addr . inet_service . inet_proto; flags dynamic; size 65535;"
    text = f"table inet pf {{ set states {{ {states} }}; }}\n"
    for chain, (hook, priority, first, last) in heads.items():
        lines = "\n".join([*first, *chains[chain], *last])
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
    for source, source_port, destination, port, protocol in states():
        ends = [ipaddress.ip_address(source), ipaddress.ip_address(destination)]
        if all(end in network for end, network in zip(ends, networks)):
            element = f"{source} . {source_port} . {destination} . {port} . {protocol}"
            nft("delete", "element", "inet", "pf", "states", f"{{ {element} }}")


def show(what, anchor):
    if what == "info":
        print("Status: Enabled for 0 days 00:00:01           Debug: Urgent")
    elif what == "rules" and anchor is None:
        print('anchor "coppice/*" all\nblock drop quick on coppicenet0 all')
    elif what == "rules":
        print(rules_of(anchor) if anchor in anchors() else "", end="")
    elif what == "Anchors":
        for name in anchors():
            if name.startswith(f"{anchor}/"):
                print(f"  {name}")
    elif what == "states":
        for source, source_port, destination, port, protocol in states():
            ends = f"{destination}:{port} <- {source}:{source_port}"
            print(f"coppicenet0 {protocol} {ends}       ESTABLISHED:ESTABLISHED")
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
            with open(os.path.join(STATE, anchor.replace("/", "%")), "w", encoding="utf8") as file:
                file.write(text)
            apply()
        elif "-F" in options:
            if anchor in anchors():
                os.unlink(os.path.join(STATE, anchor.replace("/", "%")))
                apply()
        elif "-k" in options:
            kill([value for name, value in pairs if name == "-k"])
        elif "-s" in options:
            show(options["-s"], anchor)


main()
