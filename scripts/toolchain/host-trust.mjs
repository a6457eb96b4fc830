import { existsSync } from "node:fs";

/** Files with all authorities that a system trusts: of Debian and Alpine, Fedora, FreeBSD. */
const BUNDLES = [
  "/etc/ssl/certs/ca-certificates.crt",
  "/etc/pki/tls/certs/ca-bundle.crt",
  "/etc/ssl/cert.pem",
];

/**
 * An environment in which npm and pip, which have lists of their own, trust what this host trusts: the authority of a
 * proxy that opens TLS, for instance. What is set stays, also where it is empty.
 */
export function withHostTrust(environment) {
  const bundle = environment.SSL_CERT_FILE || BUNDLES.find((path) => existsSync(path));
  return bundle === undefined
    ? environment
    : { NODE_EXTRA_CA_CERTS: bundle, PIP_CERT: bundle, ...environment };
}
