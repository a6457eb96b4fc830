import { parseArgs } from "node:util";
import { z } from "zod";
import { didYouMean } from "../kernel/did-you-mean.js";
import { messageOf } from "../kernel/errors.js";
import { ApiFailure, SandboxClient } from "./sandbox/sandbox-client.js";
import { create, kill, list } from "./sandbox/lifecycle.js";
import { exec } from "./sandbox/exec.js";
import { logs } from "./sandbox/logs.js";
import type { Options, SandboxAction } from "./sandbox/sandbox-action.js";
import { asksForHelp, isUsageError, UsageError } from "./arguments.js";
import { printFailure } from "./terminal.js";

const ACTIONS: Readonly<Record<string, SandboxAction>> = { create, list, exec, logs, kill };

const CONNECTION = { url: { type: "string" }, key: { type: "string" } } as const satisfies Options;

const USAGE = `usage:\n${Object.entries(ACTIONS)
  .map(([name, { usage }]) => `  coppice sandbox ${name} ${usage}\n`)
  .join("")}before or after the name:
  --url http://127.0.0.1:3000   the server; else COPPICE_URL, E2B_API_URL
  --key <API key or JWT>        else COPPICE_TOKEN, E2B_API_KEY, which no other user of this machine sees
`;

/** Creates and uses sandboxes of a running server over HTTP. @returns the exit code. @throws UsageError */
export async function sandbox(args: readonly string[]): Promise<number> {
  const { tokens } = parseArgs({
    args: [...args],
    options: CONNECTION,
    allowPositionals: true,
    strict: false,
    tokens: true,
  });
  const named = tokens.find((token) => token.kind === "positional");
  const name = named?.value ?? "";
  const action = Object.hasOwn(ACTIONS, name) ? ACTIONS[name] : undefined;
  if (named === undefined || action === undefined) {
    if (named !== undefined || !asksForHelp(args))
      throw new UsageError(`'sandbox' has no '${name}'${didYouMean(name, Object.keys(ACTIONS))}`, USAGE);
    process.stdout.write(USAGE);
    return 0;
  }
  const usage = `usage:\n  coppice sandbox ${name} ${action.usage}\n`;
  if (asksForHelp(args)) {
    process.stdout.write(usage);
    return 0;
  }
  try {
    const given = parseArgs({
      args: args.toSpliced(named.index, 1),
      options: { ...CONNECTION, ...action.options },
      allowPositionals: action.takesArguments,
    });
    const connection = given.values as { readonly url?: string; readonly key?: string };
    return await action.run(new SandboxClient(connection, process.env), given);
  } catch (error) {
    if (isUsageError(error)) throw new UsageError(error.message, usage);
    if (error instanceof z.ZodError || error instanceof SyntaxError) {
      process.stderr.write("coppice: the answer is none of a sandbox server: is the URL right?\n");
      return action.failed;
    }
    if (!(error instanceof ApiFailure)) throw error;
    printFailure(messageOf(error));
    return error.status === 404 ? action.notFound : action.failed;
  }
}
