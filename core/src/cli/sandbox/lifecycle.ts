import { z } from "zod";
import { printTable } from "../terminal.js";
import { sandboxAction, namedValues } from "./sandbox-action.js";
import { UsageError } from "../arguments.js";
import { SandboxError } from "../../kernel/errors.js";
import { duration } from "../../config/units.js";

const page = z.array(
  z.looseObject({
    sandboxID: z.string(),
    alias: z.string().optional(),
    templateID: z.string(),
    state: z.string(),
    startedAt: z.string(),
    endAt: z.string(),
  }),
);

const STATES = ["running", "paused"];
const HEADING = ["ID", "TEMPLATE", "STATE", "STARTED", "END"];

/** Prints the sandboxes that the key may see, newest first: id, template, state, start, end. */
export const list = sandboxAction({
  usage: "[--state running|paused] [--json]",
  failed: 1,
  notFound: 1,
  options: { state: { type: "string" }, json: { type: "boolean", default: false } },
  takesArguments: false,
  async run(client, { values }) {
    if (values.state !== undefined && !STATES.includes(values.state))
      throw new UsageError(`--state is ${STATES.join(" or ")}`);
    const sandboxes: z.infer<typeof page> = [];
    let nextToken: string | undefined;
    do {
      const query = new URLSearchParams({
        ...(values.state === undefined ? {} : { state: values.state }),
        ...(nextToken === undefined ? {} : { nextToken }),
      });
      const answer = await client.request({ path: `/v2/sandboxes?${query.toString()}` });
      sandboxes.push(...page.parse(await answer.json()));
      nextToken = answer.headers.get("x-next-token") ?? undefined;
    } while (nextToken !== undefined && nextToken !== "");
    if (values.json) process.stdout.write(`${JSON.stringify(sandboxes)}\n`);
    else printTable(HEADING, sandboxes.map(columns));
    return 0;
  },
});

function columns({ sandboxID, alias, templateID, state, startedAt, endAt }: z.infer<typeof page>[number]) {
  return [sandboxID, alias ?? templateID, state, startedAt, endAt];
}

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
