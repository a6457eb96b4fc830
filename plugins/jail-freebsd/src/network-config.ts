import { NOT_PUBLIC_IPV4 } from "@coppice/core/backend";
import { z } from "zod";

/** Accepted by ifconfig(8) and pf.conf(5), with room for the number of an interface. */
const interfaceName = z.string().regex(/^[a-z][a-z0-9_]{0,13}$/, "expected the name of an interface");

export const networkSettings = z.strictObject({
  kind: z
    .enum(["none", "vnet", "alias"])
    .default("none")
    .describe(
      "none: lo0 alone; vnet: an epair(4) on a bridge; alias: an address in the host's stack; each sandbox has its pf anchor",
    ),
  bridge: interfaceName
    .default("coppicenet0")
    .describe("vnet: the host's bridge for sandboxes, which has the first address of range"),
  loopback: interfaceName
    .default("lo1")
    .describe("alias: the host's interface for the addresses of sandboxes"),
  outside: interfaceName
    .default("em0")
    .describe("alias: the outgoing interface; connections of sandboxes leave with its address"),
  hostPorts: z
    .array(z.int().min(1).max(65_535))
    .default([22, 123, 514])
    .describe(
      "alias: ports on which programs of the host listen on every address; sandboxes can neither reach nor use them",
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
    .describe("vnet: number of the first epair; the server uses one from here on for each address of range"),
  anchor: z
    .string()
    .regex(/^[A-Za-z0-9_-]{1,32}$/, "expected the name of a pf anchor")
    .default("coppice")
    .describe(
      'Parent anchor in pf.conf, `anchor "<name>/*"` (alias: and `nat-anchor`), of the anchors of sandboxes; others below it are removed',
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
    .describe(
      "Name servers that every sandbox may ask, even without internet access and if listed in blocked",
    ),
  connections: z
    .int()
    .min(16)
    .default(10_000)
    .describe("Maximum of pf states per rule of a sandbox; more connections are refused"),
});

export type NetworkSettings = z.infer<typeof networkSettings>;
