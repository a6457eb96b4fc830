import { z } from "zod";
import { sandboxesConfig } from "../sandbox/model/sandboxes-config.js";
import { duration, size } from "../config/units.js";

const tlsConfig = z.strictObject({
  cert: z.string().describe("PEM file of the certificate chain"),
  key: z.string().describe("PEM file of the private key"),
});

const listenerConfig = z.strictObject({
  host: z
    .string()
    .default("127.0.0.1")
    .describe("address to bind; anything but loopback needs authentication"),
  port: z.int().min(0).max(65535).describe("TCP port; 0 picks a free one"),
  insecure: z
    .boolean()
    .default(false)
    .describe("serve other machines although authentication or isolation is missing"),
  tls: tlsConfig.optional().describe("serve HTTPS"),
});

const httpConfig = z.strictObject({
  headersTimeout: duration("30s").describe("time a client has to send its request headers"),
  idleTimeout: duration("11m").describe("a connection that moves no byte for this long is closed"),
  messageLimit: size("4MiB").describe(
    "largest RPC message, which is parsed at once; a binary one that is compressed may have 256KiB",
  ),
  maxHeldBodies: size("512MiB").describe(
    "bytes of bodies and messages (RPC, WebSockets) over 64 KiB that are in memory while they are read and answered, and of output that clients have not taken, of all of them together; more are refused with 503",
  ),
  maxConnections: z.int().min(1).default(10_000).describe("open connections per listener; more are refused"),
  maxConnectionsPerAddress: z
    .int()
    .min(1)
    .default(2_000)
    .describe(
      "open connections per listener of one client address (IPv6: of one /64) that is not in `trustedProxies`; more are closed",
    ),
  proxyIdleTimeout: duration("1s").describe(
    "time that a connection to a port of a sandbox is kept for the next request to it",
  ),
  proxyIdleConnections: z
    .int()
    .min(1)
    .default(16)
    .describe("connections to one port of one sandbox that are kept"),
  proxyHeadLimit: size("16KiB").describe(
    "most bytes that the headers of an answer from a port of a sandbox may have; more are answered with 502",
  ),
  proxyMaxExchanges: z
    .int()
    .min(1)
    .default(1_000)
    .describe("requests and WebSockets to the ports of one sandbox at a time; more are refused with 429"),
  trustedProxies: z
    .array(z.union([z.ipv4(), z.ipv6(), z.cidrv4(), z.cidrv6()]))
    .default([])
    .describe("addresses and CIDR ranges of proxies whose X-Forwarded-For is believed"),
  allowedHosts: z
    .array(z.string().regex(/^[A-Za-z0-9.-]+$/, "expected a host name without a port"))
    .default([])
    .describe(
      "further host names that listeners on loopback accept, such as those of a proxy in front; localhost, addresses and `domain` with its subdomains are always accepted",
    ),
  allowedOrigins: z
    .array(
      z
        .string()
        .regex(/^[a-z][a-z0-9+.-]*:\/\/[^/]+$/, "expected an origin, such as https://app.example.com"),
    )
    .default([])
    .describe(
      "further origins whose web pages may call listeners on loopback; pages of this machine always may",
    ),
  drainTimeout: duration("10s").describe("time that running requests get to end when the server stops"),
});

const outgoingConfig = z.strictObject({
  authorities: z
    .enum(["host", "node"])
    .default("host")
    .describe(
      "who is trusted beside the public authorities: those that this host trusts (`/usr/local/share/ca-certificates` and the like, SSL_CERT_FILE, NODE_EXTRA_CA_CERTS), or only those of Node",
    ),
  proxy: z
    .enum(["environment", "none"])
    .default("environment")
    .describe(
      "proxy for keys of identity providers and the checks of `doctor`: that of HTTPS_PROXY, HTTP_PROXY and NO_PROXY, or none; `templates.registries.proxy` is that of registries",
    ),
});

/** The server's own settings; each plugin has a schema for its own. */
export const serverConfig = z.strictObject({
  listeners: z
    .record(z.string().regex(/^[a-z][a-z0-9-]*$/, "a listener's name is kebab-case"), listenerConfig)
    .refine((listeners) => Object.keys(listeners).length > 0, "at least one listener is needed")
    .describe("addresses to serve; the name is the surface that is served where no sandbox is addressed"),
  dataDir: z.string().default("./.coppice").describe("ledger, and what plugins keep, of this installation"),
  domain: z
    .string()
    .regex(/^[a-z0-9.-]+$/, "a domain is lower-case letters, digits, dots and dashes")
    .default("localhost")
    .describe("requests to <port>-<sandbox id>.<domain> are for that port of that sandbox"),
  log: z
    .strictObject({
      level: z.enum(["trace", "debug", "info", "warn", "error", "fatal", "silent"]).default("info"),
    })
    .prefault({})
    .describe("JSON lines on stdout"),
  http: httpConfig.prefault({}).describe("limits of every listener"),
  outgoing: outgoingConfig.prefault({}).describe("connections that the server makes itself"),
  startTimeout: duration("5m").describe(
    "time that each step of the start gets: the setup and start of a plugin, the check of a backend",
  ),
  stopTimeout: duration("20s").describe("time that each clean-up step gets when the server stops"),
  sandboxes: sandboxesConfig.prefault({}).describe("the sandboxes of this server"),
  plugins: z
    .record(z.string(), z.unknown())
    .default({})
    .describe("present = on; a bare name is @coppice/plugin-<name>, one with a slash is a package or a path"),
});

/** Settings of core that are read at each use, so that they may change while the server runs. */
export const RELOADED: readonly string[] = [
  "listeners.*.tls.cert",
  "listeners.*.tls.key",
  ...[
    "createTimeout",
    "defaultTimeout",
    "destroyTimeout",
    "maximum",
    "maximumLimits",
    "maximumOutbox",
    "maximumSnapshots",
    "maximumTimeout",
    "maximumVolumes",
    "maximumVolumeSize",
    "openVolumes",
    "pausedKept",
    "readiness",
    "templates.*.limits",
    "templates.*.readinessProbe",
    "volumeSize",
  ].map((key) => `sandboxes.${key}`),
];

export type ServerConfig = z.infer<typeof serverConfig>;
