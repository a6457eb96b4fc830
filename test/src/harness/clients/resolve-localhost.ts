import dns, { type LookupOptions } from "node:dns";

// For `node --import`: every name below `localhost` is this machine, as browsers and systemd have it and
// glibc has not. So a test needs no entry in /etc/hosts.

type Callback = (error: NodeJS.ErrnoException | null, ...rest: unknown[]) => void;

const lookup = dns.lookup as (name: string, options: LookupOptions, callback: Callback) => void;
const resolveLocal = (name: string, options: unknown, callback?: Callback): void => {
  const settings: LookupOptions =
    typeof options === "number" ? { family: options } : (typeof options === "object" && options) || {};
  const done = (typeof options === "function" ? options : callback) as Callback;
  if (!name.endsWith(".localhost")) lookup(name, settings, done);
  else if (settings.all === true) process.nextTick(done, null, [{ address: "127.0.0.1", family: 4 }]);
  else process.nextTick(done, null, "127.0.0.1", 4);
};

dns.lookup = resolveLocal as typeof dns.lookup;
