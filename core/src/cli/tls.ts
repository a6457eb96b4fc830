import { isIP } from "node:net";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { UsageError } from "./arguments/usage-error.js";

const DEFAULT_FOLDER = ".coppice/tls";

/** `tls init <domain or address> [folder]`: certificates signed by an authority of this machine. */
export async function tls(args: readonly string[]): Promise<number> {
  const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
  const [action, domain, folder = DEFAULT_FOLDER, ...rest] = positionals;
  if (action !== "init") throw new UsageError(`'tls' has no '${action ?? ""}'`);
  if (domain === undefined || rest.length > 0)
    throw new UsageError("name one domain or IP address, and a folder if you like");
  // Loaded here: no other verb needs the X.509 library.
  const { initTls } = await import("./tls-init.js");
  const directory = resolve(folder);
  const { isNewAuthority } = await initTls(domain, directory);
  const authority = join(directory, "ca.pem");
  process.stdout.write(`${isNewAuthority ? "Made" : "Used"} the certificate authority ${authority}\n`);
  if (isIP(domain) !== 0) {
    process.stdout.write(`Made a certificate for ${domain}; keep ca-key.pem away from servers\n`);
    return 0;
  }
  process.stdout.write(
    `Made a certificate for ${domain} and *.${domain}\n\n` +
      "In the configuration:\n" +
      `  listeners: { api: { port: 8443, tls: { cert: ${join(directory, "cert.pem")}, key: ${join(directory, "key.pem")} } } }\n` +
      `  domain: ${domain}\n` +
      "  plugins:\n" +
      `    sandbox-api: { domain: "${domain}:8443" }\n\n` +
      "For clients:\n" +
      `  export NODE_EXTRA_CA_CERTS=${authority}   # JavaScript\n` +
      `  export SSL_CERT_FILE=${authority}         # Python, which then trusts nothing else\n` +
      `  export E2B_DOMAIN=${domain}:8443\n\n` +
      "For development only: with ca-key.pem anyone can impersonate any site to clients that trust ca.pem.\n",
  );
  return 0;
}
