import assert from "node:assert/strict";
import { ALL_TRAFFIC, type Sandbox } from "@coppice/core/backend";
import type { ConformanceCase } from "../kit/conformance-case.js";
import type { ConformanceContext } from "../kit/conformance-context.js";
import { OutputReader } from "../kit/output-reader.js";

/** Prints whether a server at an address and port echoes. */
const REACH = `
import socket, sys
connection = socket.socket()
connection.settimeout(1)
try:
    connection.connect((sys.argv[1], int(sys.argv[2])))
    connection.sendall(b"x")
    print("reached" if connection.recv(1) == b"x" else "closed")
except OSError:
    print("not reached")
`;

/** Exchanges messages on one connection, printing each, until it is cut. */
const STAY = `
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
connection.settimeout(1)
try:
    while True:
        connection.sendall(b"x")
        if connection.recv(1) == b"":
            break
        print("tick", flush=True)
        time.sleep(0.02)
except OSError:
    pass
print("cut", flush=True)
`;

const NO_RULES = { allowOut: [], denyOut: [] };
const needs = ["networking", "outside", { program: "python3" }] as const;

/** Outgoing connections of a sandbox and their limits. */
export const networkingCases: readonly ConformanceCase[] = [
  {
    name: "rules can be replaced again and again, and no more once the sandbox has ended",
    group: "facets",
    needs: ["networking"],
    async run(context) {
      const { sandbox } = context;
      const networking = networkingOf(sandbox);
      const closed = {
        allowOut: ["203.0.113.254", "198.51.100.0/24"],
        denyOut: [ALL_TRAFFIC, "2001:db8::/32"],
      };
      for (const rules of [closed, closed, NO_RULES, NO_RULES]) await networking.restrict(rules);
      await Promise.all([
        networking.restrict(closed),
        networking.restrict(NO_RULES),
        networking.restrict(closed),
      ]);
      assert.equal(await context.succeed("echo awake"), "awake\n");
      await sandbox.destroy();
      await context.refuses(networking.restrict(NO_RULES), [
        "unavailable",
        "not_found",
        "failed_precondition",
      ]);
    },
  },
  {
    name: "a sandbox reaches what its rules leave open, and allowed destinations win over denied ones",
    group: "facets",
    needs,
    async run(context) {
      const [one, other] = outsideOf(context).addresses;
      const free = await context.provision({ allowInternetAccess: true });
      const denied = { allowOut: [], denyOut: [one] };
      const without = await context.provision({ allowInternetAccess: true, egress: denied });
      const allowed = { allowOut: [other], denyOut: [ALL_TRAFFIC] };
      const only = await context.provision({ allowInternetAccess: false, egress: allowed });
      for (const [sandbox, expected] of [
        [free, "reached, reached"],
        [without, "not reached, reached"],
        [only, "not reached, reached"],
      ] as const) {
        assert.equal(await reach(context, sandbox), expected);
      }
    },
  },
  {
    name: "changed rules apply at once, for open connections as well",
    group: "facets",
    needs,
    async run(context) {
      const { addresses, port } = outsideOf(context);
      const [one, other] = addresses;
      const sandbox = await context.provision({ allowInternetAccess: true });
      const bystander = await context.provision({ allowInternetAccess: true });
      const stay = async (where: Sandbox, address: string): Promise<OutputReader> => {
        const args = ["-c", STAY, address, String(port)];
        const reader = new OutputReader(await context.startProgram("python3", args, { in: where }));
        await reader.sees(/tick/);
        return reader;
      };
      const cut = await stay(sandbox, one);
      const kept = [await stay(sandbox, other), await stay(bystander, one)];
      await networkingOf(sandbox).restrict({ allowOut: [], denyOut: [one] });
      await cut.sees(/cut/);
      assert.equal(await reach(context, sandbox), "not reached, reached");
      for (const reader of kept) {
        const before = reader.text.length;
        await context.until("the others go on", () => reader.text.length > before);
        assert.doesNotMatch(reader.text, /cut/);
      }
      await networkingOf(sandbox).restrict({ allowOut: [one], denyOut: [ALL_TRAFFIC] });
      assert.equal(await reach(context, sandbox), "reached, not reached");
      await networkingOf(sandbox).restrict(NO_RULES);
      assert.equal(await reach(context, sandbox), "reached, reached");
    },
  },
  {
    name: "a sandbox that was made without internet access can be given it, and loses it again",
    group: "facets",
    needs,
    async run(context) {
      const sandbox = await context.provision({ allowInternetAccess: false });
      for (const [rules, expected] of [
        [{ allowOut: [], denyOut: [ALL_TRAFFIC] }, "not reached, not reached"],
        [NO_RULES, "reached, reached"],
        [{ allowOut: [], denyOut: [ALL_TRAFFIC] }, "not reached, not reached"],
      ] as const) {
        await networkingOf(sandbox).restrict(rules);
        assert.equal(await reach(context, sandbox), expected);
      }
    },
  },
];

function networkingOf({ networking }: Sandbox): NonNullable<Sandbox["networking"]> {
  assert.ok(networking, "the sandbox has no networking");
  return networking;
}

function outsideOf({ subject }: ConformanceContext): NonNullable<typeof subject.outside> {
  assert.ok(subject.outside);
  return subject.outside;
}

/** Describes which of the two outside addresses a sandbox reaches. */
async function reach(context: ConformanceContext, sandbox: Sandbox): Promise<string> {
  const { addresses, port } = outsideOf(context);
  const attempts = addresses.map(async (address) => {
    const args = ["-c", REACH, address, String(port)];
    const { stdout } = await context.finish(await context.startProgram("python3", args, { in: sandbox }));
    return stdout.toString().trim();
  });
  return (await Promise.all(attempts)).join(", ");
}
