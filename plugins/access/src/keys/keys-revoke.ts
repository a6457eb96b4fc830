import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import { KeyStore } from "./key-store.js";

/** Revokes a key: a running server refuses it from the next request on. */
export const keysRevoke: VerbAction<unknown> = {
  usage: "<id of the key>",
  run({ args, clock, dataDir, print }) {
    const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
    const [id, ...more] = positionals;
    if (id === undefined || more.length > 0) throw new SandboxError("usage_invalid", "name one key");
    using store = new KeyStore(dataDir());
    if (!store.revoke(id, clock.now())) throw new SandboxError("key_not_found", `no key '${id}' is in use`);
    print(`key ${id} is revoked`);
    return 0;
  },
};
