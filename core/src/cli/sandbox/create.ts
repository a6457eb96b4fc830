import { z } from "zod";
import { duration } from "../../config/units.js";
import { SandboxError } from "../../kernel/errors.js";
import { sandboxAction } from "./sandbox-action.js";
import { namedValues } from "./named-values.js";

const made = z.looseObject({ sandboxID: z.string() });

export const create = sandboxAction({
  usage: "[--template base] [--ttl 5m] [--env NAME=value]… [--metadata name=value]… [--json]",
  failed: 1,
  notFound: 1,
  options: {
    template: { type: "string", default: "base" },
    ttl: { type: "string" },
    env: { type: "string", multiple: true, default: [] },
    metadata: { type: "string", multiple: true, default: [] },
    json: { type: "boolean", default: false },
  },
  takesArguments: false,
  async run(client, { values }) {
    const answer = await client.request({
      method: "POST",
      path: "/v2/sandboxes",
      body: {
        templateID: values.template,
        secure: true,
        envVars: namedValues("--env", values.env),
        metadata: namedValues("--metadata", values.metadata),
        ...(values.ttl === undefined ? {} : { timeout: seconds(values.ttl) }),
      },
    });
    const body = made.parse(await answer.json());
    process.stdout.write(`${values.json ? JSON.stringify(body) : body.sandboxID}\n`);
    return 0;
  },
});

/** Whole seconds, rounded up: the API counts in them. */
function seconds(text: string): number {
  const parsed = duration().safeParse(text);
  if (parsed.data !== undefined && parsed.data > 0) return Math.ceil(parsed.data / 1000);
  throw new SandboxError("usage_invalid", "--ttl is a length of time, as 5m");
}
