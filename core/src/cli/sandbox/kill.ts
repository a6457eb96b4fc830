import { parseArgs } from "node:util";
import { SandboxError } from "../../kernel/errors.js";
import type { SandboxAction } from "./sandbox-action.js";

export const kill: SandboxAction = {
  usage: "<id>…",
  failed: 1,
  notFound: 2,
  async run(client, args) {
    const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
    if (positionals.length === 0) throw new SandboxError("usage_invalid", "name a sandbox");
    for (const id of positionals) {
      await client.request({ method: "DELETE", path: `/sandboxes/${encodeURIComponent(id)}` });
    }
    return 0;
  },
};
