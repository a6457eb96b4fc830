import { MOST_IN_PLACE_BYTES } from "@coppice/agent";
import { size } from "@coppice/core";
import { addressList, NOT_PUBLIC_IPV4 } from "@coppice/core/backend";
import { z } from "zod";

/** Above the accounts of any host. */
const MIN_FIRST_ID = 65_536;
/** The last id is reserved: -1 means none. */
const MAX_ID = 2 ** 32 - 1;

const templateSettings = z.discriminatedUnion("kind", [
  z.strictObject({
    kind: z.literal("base").describe("This host's /usr with a generated /etc"),
    python: z
      .string()
      .min(1)
      .optional()
      .describe("Interpreter on this host, with ipykernel, available as `python3` in sandboxes"),
    node: z.string().min(1).optional().describe("Node.js on this host, available as `node` in sandboxes"),
  }),
  z.strictObject({
    kind: z.literal("directory").describe("Any root file system"),
    path: z.string().min(1).describe("Path on this host; it is never changed"),
    user: z.string().min(1).default("user").describe("Default account, created if missing"),
  }),
]);

export const linuxNamespacesConfig = z
  .strictObject({
    directory: z
      .string()
      .min(1)
      .default("/var/lib/coppice/linux-namespaces")
      .describe("Directory of sandboxes, which outlast restarts; one server at a time uses it"),
    python: z
      .string()
      .min(1)
      .default("python3")
      .describe("Interpreter on this host, with ipykernel, for the template code-interpreter-v1"),
    node: z
      .string()
      .min(1)
      .optional()
      .describe(
        "Full path of a Node.js on this host for base and code-interpreter-v1; default is that of /usr, which may be too old for kernels",
      ),
    templates: z
      .record(z.string(), templateSettings)
      .default({})
      .describe(
        "Further templates by name, beside base and code-interpreter-v1: `{ kind: directory, path, user }` is any root file system, `{ kind: base, python, node }` this host's /usr",
      ),
    sudo: z
      .boolean()
      .default(true)
      .describe("Let the default user become root inside by sudo; false sets no_new_privs"),
    ids: z
      .strictObject({
        first: z.int().min(MIN_FIRST_ID).default(1_073_741_824).describe("The first one"),
        count: z.int().min(0).default(536_870_912).describe("Number of ids, 65536 for each sandbox; 0: none"),
      })
      .refine(({ first, count }) => first + count <= MAX_ID, "ends above 4294967294, the last id there is")
      .prefault({})
      .describe(
        "Range of user ids on this host for running sandboxes of a root server, used by no other program",
      ),
    layers: z
      .enum(["auto", "disk", "memory"])
      .default("auto")
      .describe("Storage of the changed files of sandboxes; in memory they count against the memory limit"),
    limits: z
      .strictObject({
        cpuCount: z.number().positive().default(2).describe("CPUs"),
        memoryMiB: z.int().min(16).default(1024).describe("Memory in MiB, shared memory included"),
        diskMiB: z.int().min(16).default(10_240).describe("Disk in MiB"),
        processes: z.int().min(16).default(512).describe("Processes and threads at one time"),
        openFiles: z.int().min(64).default(65_536).describe("Open files of one process"),
      })
      .prefault({})
      .describe("Limits when neither the creator nor the template sets them"),
    egress: z
      .enum(["none", "nat", "auto"])
      .default("none")
      .describe(
        "Network of sandboxes with internet access: none, nat with veth and nftables, or auto: nat where this host can, else none",
      ),
    egressProgram: z
      .string()
      .regex(/^\/(.*\/)?(pasta|slirp4netns)$/, "expected the full path of pasta or slirp4netns")
      .optional()
      .describe("Full path of pasta or slirp4netns, for egress without root; searched for unless set"),
    egressRange: z
      .string()
      .regex(
        /^10\.\d{1,3}\.0\.0\/16$/,
        "expected a range 10.N.0.0/16, such as 10.213.0.0/16: networks of sandboxes take all of it",
      )
      .default("10.213.0.0/16")
      .describe(
        "Addresses for sandboxes with egress, 10.N.0.0/16; not used elsewhere on this host or its networks",
      ),
    egressConnections: z
      .int()
      .min(64)
      .default(8_192)
      .describe("Connections of one sandbox with egress that the host's kernel tracks at one time"),
    egressBlocked: z
      .array(z.cidrv4())
      .default([...NOT_PUBLIC_IPV4])
      .describe("Address ranges that sandboxes with egress cannot reach; this host itself is always blocked"),
    nameservers: z
      .array(z.ipv4())
      .default(["1.1.1.1", "8.8.8.8"])
      .describe("Name servers of sandboxes with egress"),
    writeInPlaceLimit: size()
      .refine((bytes) => bytes <= MOST_IN_PLACE_BYTES, "at most 240KiB: it goes to the sandbox in one piece")
      .prefault("128KiB")
      .describe(
        "Files up to this size are written in place at once; larger ones are staged beside the target and renamed",
      ),
    diskLimit: z
      .enum(["end", "report"])
      .default("end")
      .describe(
        "Without project quotas: end a sandbox that exceeds diskMiB, or fills a volume past its size, or only report it",
      ),
    diskScanEntries: z
      .int()
      .min(0)
      .default(20_000)
      .describe("Maximum of files scanned to measure the disk usage of a sandbox"),
  })
  .superRefine(({ egress, egressBlocked, nameservers }, context) => {
    if (egress === "none") return;
    const blocked = addressList(egressBlocked);
    for (const [index, address] of nameservers.entries()) {
      if (!blocked.check(address, "ipv4")) continue;
      const message = `${address} is in a range of egressBlocked: no sandbox would reach it`;
      context.addIssue({ code: "custom", path: ["nameservers", index], message });
    }
  });

export type LinuxNamespacesSettings = z.infer<typeof linuxNamespacesConfig>;
