import { once } from "node:events";
import { createServer } from "node:net";
import { networkInterfaces } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import { REASONS } from "../reasons.js";

const ATTEMPTS = 50;
const PAUSE_MS = 20;

/**
 * Reserves a range of addresses for this server, by a name in the kernel that is unique in each network namespace and
 * ends with its process.
 * @param prefix of this installation's interfaces; other interfaces must not have addresses of the range.
 * @throws SandboxError unavailable when the range is in use.
 */
export async function claimRange(range: string, prefix: string): Promise<Disposable> {
  const claim = createServer().unref();
  const refuse = (by: string): SandboxError =>
    new SandboxError(REASONS.egress_range_in_use, `egressRange ${range} is used by ${by}: set another range`);
  // A server that is just ending releases it in a moment.
  for (let attempt = 1; ; attempt++) {
    try {
      await once(claim.listen(`\0coppice-egress-${range}`), "listening");
      break;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EADDRINUSE") throw error;
      if (attempt === ATTEMPTS) throw refuse("another server of this host");
      await sleep(PAUSE_MS);
    }
  }
  const beginning = range.replace(/0\.0\/16$/, "");
  for (const [name, addresses = []] of Object.entries(networkInterfaces())) {
    if (name.startsWith(prefix) || !addresses.some(({ address }) => address.startsWith(beginning))) continue;
    claim.close();
    throw refuse(`the interface ${name} of this host, perhaps that of another installation's sandbox`);
  }
  return { [Symbol.dispose]: () => claim.close() };
}
