import { NOT_PUBLIC_IPV4 } from "@coppice/core/backend";
import { z } from "zod";

/** What ifconfig(8) and pf.conf(5) take as a name, with room for the number of an interface. */
const interfaceName = z.string().regex(/^[a-z][a-z0-9_]{0,13}$/, "expected the name of an interface");

/** How sandboxes are connected; part of the plugin's settings. */
export const networkSettings = z.strictObject({
  kind: z
    .enum(["none", "vnet", "alias"])
    .default("none")
    .describe(
      "none: lo0 alone; vnet: an epair(4) on a bridge, alias: an address in the host's stack, each with a pf anchor of its own",
    ),
  bridge: interfaceName
    .default("coppicenet0")
    .describe("vnet: the host's bridge for sandboxes, which has the first address of range"),
  loopback: interfaceName
    .default("lo1")
    .describe("alias: the host's interface that sandboxes have their addresses on"),
  outside: interfaceName
    .default("em0")
    .describe("alias: the interface that leads out, whose address the connections of sandboxes have there"),
  hostPorts: z
    .array(z.int().min(1).max(65_535))
    .default([22, 123, 514])
    .describe(
      "alias: ports at which programs of the host listen on every address; sandboxes use them neither there nor for themselves",
    ),
  range: z
    .string()
    .regex(/^\d{1,3}(\.\d{1,3}){3}\/(1[89]|2[0-8])$/, "expected an IPv4 range of /18 to /28")
    .pipe(z.cidrv4())
    .default("10.78.0.0/20")
    .describe("Addresses for sandboxes, from the tenth on; not used elsewhere on this host or its networks"),
  firstEpair: z
    .int()
    .min(0)
    .max(16_000)
    .default(10_000)
    .describe(
      "vnet: number of the first epair; all from it on, one for each address of range, are the server's",
    ),
  anchor: z
    .string()
    .regex(/^[A-Za-z0-9_-]{1,32}$/, "expected the name of a pf anchor")
    .default("coppice")
    .describe(
      'Anchor of pf.conf, `anchor "<name>/*"` (alias: and `nat-anchor`), below which each sandbox has its own; what else is below it is removed',
    ),
  blocked: z
    .array(z.cidrv4())
    .default([...NOT_PUBLIC_IPV4])
    .describe(
      "Address ranges that no sandbox reaches, whatever its rules; the host itself is always blocked",
    ),
  resolvers: z
    .array(z.ipv4())
    .default([])
    .describe("Name servers that every sandbox may ask, those without internet access and in blocked too"),
  connections: z
    .int()
    .min(16)
    .default(10_000)
    .describe("States that pf keeps at a time for one rule of a sandbox; more connections are refused"),
});

/** The parsed settings of the network. */
export type NetworkSettings = z.infer<typeof networkSettings>;
