import { z } from "zod";
import { printTable } from "../terminal/print-table.js";
import { sandboxAction } from "./sandbox-action.js";
import { UsageError } from "../arguments/usage-error.js";

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
