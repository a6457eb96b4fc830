import { SandboxError } from "../../kernel/errors.js";
import { sandboxAction } from "./sandbox-action.js";

export const kill = sandboxAction({
  usage: "<id>…",
  failed: 1,
  notFound: 2,
  options: {},
  takesArguments: true,
  async run(client, { positionals }) {
    if (positionals.length === 0) throw new SandboxError("usage_invalid", "name a sandbox");
    for (const id of positionals) {
      await client.request({ method: "DELETE", path: `/sandboxes/${encodeURIComponent(id)}` });
    }
    return 0;
  },
});
