import {
  type Command,
  InvalidArgumentError,
  Option,
  duration,
  messageOf,
  printFailure,
  SandboxError,
} from "@coppice/core/client";

const SANDBOXES = "Sandboxes:";
/** The code that `docker exec` and `timeout` use, too: commands rarely exit with it. */
const EXIT_NOT_RUN = 125;

type Run = () => Promise<number>;

/** Adds the verbs that use a server to the command line. Their files, and the SDK, are loaded by the one that runs. */
export function addClientVerbs(program: Command): void {
  const verb = (name: string, text: string, ...examples: readonly string[]) =>
    program
      .command(name)
      .helpGroup(SANDBOXES)
      .description(text)
      .addOption(new Option("--context <name>", "a server of 'coppice context'").env("COPPICE_CONTEXT"))
      .addOption(new Option("--url <url>", "the server; else E2B_API_URL, E2B_DOMAIN").env("COPPICE_URL"))
      .addHelpText("after", `\nExamples:\n${examples.map((each) => `  coppice ${each}`).join("\n")}`);
  const json = () => new Option("--json", "prints JSON");
  const fields = () => new Option("--fields <names>", "columns, with commas");
  const ttl = () =>
    new Option("--ttl <time>", "how long it lives, as 5m").argParser((text): number => milliseconds(text));
  const env = () => new Option("--env <name=value>", "environment variables").argParser(named);
  const metadata = () => new Option("--metadata <name=value>", "labels").argParser(named);
  const allTenants = () => new Option("--all-tenants", "of all tenants, for the operator's key");
  const user = () => new Option("--user <name>", "account in the sandbox");

  verb(
    "run",
    "creates a sandbox, runs code in it, saves plots, removes it",
    "run plot.py",
    "run -c 'print(6 * 7)'",
  )
    .argument("[file]", "code, or - for standard input")
    .option("-c, --code <code>", "code")
    .option("--language <name>", "python, javascript, typescript, bash, r, java; else by the file's name")
    .option("--template <name>", "template with a code interpreter")
    .option("--output <folder>", "where plots are saved", ".")
    .option("--keep", "does not remove the sandbox")
    .addOption(ttl())
    .addOption(env())
    .addOption(metadata())
    .addOption(json())
    .action((file, options) => ending(async () => (await import("./verbs/run.js")).run(file, options)));
  verb("create", "creates a sandbox and prints its id", "create --template base --ttl 30m --env DEBUG=1")
    .option("--template <name>", "template or snapshot", "base")
    .addOption(ttl())
    .addOption(env())
    .addOption(metadata())
    .addOption(json())
    .action((options) => ending(async () => (await import("./verbs/lifecycle.js")).create(options)));
  verb(
    "ps",
    "lists sandboxes, the newest first",
    "ps --state paused",
    "ps --fields id,end --metadata team=a",
    "ps --all-tenants",
  )
    .addOption(new Option("--state <state>", "only those").choices(["running", "paused"]))
    .addOption(metadata())
    .addOption(allTenants())
    .addOption(fields())
    .addOption(json())
    .action((options) => ending(async () => (await import("./verbs/lifecycle.js")).ps(options)));
  verb(
    "events",
    "prints events of sandboxes, the newest last",
    "events -f",
    "events --sandbox <id>",
    "events --all-tenants --limit 1000 --json",
  )
    .option("-f, --follow", "goes on with new events, also after a lost connection")
    .option("--sandbox <id>", "only its events")
    .addOption(new Option("--limit <number>", "how many").argParser(count).default(100))
    .addOption(allTenants())
    .addOption(fields())
    .addOption(new Option("--json", "prints a JSON line for each event"))
    .action((options) => ending(async () => (await import("./verbs/events.js")).events(options)));
  verb(
    "exec",
    "runs a program in a sandbox",
    "exec <id> -- make test > test.log",
    "exec -it <id> -- python3",
    "exec <id> -- tar -x < files.tar",
  )
    .usage("[options] <id> -- <program> [argument...]")
    .argument("<id>")
    .argument("<program...>")
    .option("-i, --interactive", "passes on the input of this terminal")
    .option("-t, --tty", "gives it a terminal")
    .option("--no-stdin", "passes on no input, for loops of a shell that read it")
    .option("--cwd <dir>", "where it starts")
    .addOption(user())
    .addOption(env())
    .action((id, program, options) =>
      ending(async () => (await import("./verbs/exec.js")).exec(id, program, options), {
        failed: EXIT_NOT_RUN,
        notFound: EXIT_NOT_RUN,
      }),
    );
  verb("shell", "opens a shell in a sandbox", "shell <id>")
    .argument("<id>")
    .addOption(user())
    .action((id, options) =>
      ending(async () => (await import("./verbs/exec.js")).shell(id, options), {
        failed: EXIT_NOT_RUN,
        notFound: EXIT_NOT_RUN,
      }),
    );
  verb(
    "cp",
    "copies files and folders into a sandbox, or out of it",
    "cp ./src <id>:/home/user/",
    "cp <id>:/home/user/plot.png .",
  )
    .argument("<source>", "path, or <id>:path")
    .argument("<target>", "path, or <id>:path")
    .addOption(user())
    .action((source, target, options) =>
      ending(async () => (await import("./verbs/cp.js")).cp(source, target, options)),
    );
  verb("logs", "prints the output of a sandbox's commands, also after its end", "logs <id> -f")
    .argument("<id>")
    .option("-f, --follow", "goes on with new lines")
    .option("--raw", "shows control characters to a terminal as they are")
    .addOption(json())
    .action((id, options) => ending(async () => (await import("./verbs/logs.js")).logs(id, options)));
  verb("top", "shows what running sandboxes use", "top", "top <id> --once")
    .argument("[id...]")
    .option("--once", "shows it once")
    .addOption(fields())
    .addOption(json())
    .action((ids, options) => ending(async () => (await import("./verbs/top.js")).top(ids, options)));
  verb("why", "tells how a sandbox ended, or its state, and its events", "why <id>")
    .argument("<id>")
    .addOption(json())
    .action((id, options) => ending(async () => (await import("./verbs/why.js")).why(id, options)));
  verb(
    "port-forward",
    "makes ports of a sandbox ports of this machine",
    "port-forward <id> 8080",
    "port-forward <id> 15432:5432",
  )
    .argument("<id>")
    .argument("<[local:]port...>", "0 for any local port", (text: string, before?: string[]) => [
      ...(before ?? []),
      portPair(text),
    ])
    .option("--address <address>", "address of this machine", "127.0.0.1")
    .action((id, ports, options) =>
      ending(async () => (await import("./verbs/ports.js")).portForward(id, ports, options)),
    );
  verb("open", "prints the URL of a port of a sandbox", "open <id> 8080 --browser")
    .argument("<id>")
    .argument("<port>", "", port)
    .option("--browser", "opens it in the browser")
    .action((id, number, options) =>
      ending(async () => (await import("./verbs/ports.js")).open(id, number, options)),
    );
  verb("pause", "pauses sandboxes", "pause <id>")
    .argument("<id...>")
    .action((ids, options) => ending(async () => (await import("./verbs/lifecycle.js")).pause(ids, options)));
  verb("resume", "resumes paused sandboxes", "resume <id> --ttl 1h")
    .argument("<id...>")
    .addOption(ttl())
    .action((ids, options) =>
      ending(async () => (await import("./verbs/lifecycle.js")).resume(ids, options)),
    );
  verb(
    "snapshot",
    "makes a snapshot of a sandbox and prints its id",
    "create --template $(coppice snapshot <id>)",
  )
    .argument("<id>")
    .option("--name <name>", "a name for it")
    .addOption(json())
    .action((id, options) =>
      ending(async () => (await import("./verbs/lifecycle.js")).snapshot(id, options)),
    );
  verb("fork", "makes copies of a running sandbox and prints their ids", "fork <id> --count 3")
    .argument("<id>")
    .addOption(new Option("--count <number>", "how many").argParser(count).default(1))
    .addOption(ttl())
    .addOption(json())
    .action((id, options) => ending(async () => (await import("./verbs/lifecycle.js")).fork(id, options)));
  verb("kill", "removes sandboxes", "kill <id> <id>")
    .argument("<id...>")
    .action((ids, options) => ending(async () => (await import("./verbs/lifecycle.js")).kill(ids, options)));
  addContextVerbs(program);
}

function addContextVerbs(program: Command): void {
  const contexts = program
    .command("context")
    .helpGroup(SANDBOXES)
    .description("servers, and the keys to them");
  contexts
    .command("add")
    .description("adds a server, with the key of E2B_API_KEY; the first one is used at once")
    .argument("<name>")
    .requiredOption("--server <url>", "its URL")
    .option("--key-stdin", "reads the key from standard input")
    .addHelpText(
      "after",
      "\nExample:\n  coppice context add prod --server https://coppice.example.com --key-stdin < key",
    )
    .action((name, options) =>
      ending(async () => (await import("./verbs/context.js")).addContext(name, options)),
    );
  contexts
    .command("use")
    .description("makes it the one that verbs use")
    .argument("<name>")
    .addHelpText("after", "\nExample:\n  coppice context use prod")
    .action((name) => ending(async () => (await import("./verbs/context.js")).useContext(name)));
  contexts
    .command("list")
    .description("lists servers, without keys")
    .addOption(new Option("--fields <names>", "columns, with commas"))
    .option("--json", "prints JSON")
    .addHelpText("after", "\nExample:\n  coppice context list")
    .action((options) => ending(async () => (await import("./verbs/context.js")).listContexts(options)));
  contexts
    .command("remove")
    .description("forgets a server and its key")
    .argument("<name>")
    .addHelpText("after", "\nExample:\n  coppice context remove prod")
    .action((name) => ending(async () => (await import("./verbs/context.js")).removeContext(name)));
}

/** Runs a verb; what it returns is the exit code, and a failure is told on stderr. */
async function ending(run: Run, codes = { failed: 1, notFound: 2 }): Promise<void> {
  try {
    process.exitCode = await run();
  } catch (error) {
    if (error instanceof SandboxError) throw error;
    const { name, status } = error as { readonly name?: string; readonly status?: number };
    printFailure(failureText(error));
    process.exitCode = name === "SandboxNotFoundError" || status === 404 ? codes.notFound : codes.failed;
  }
}

/** The texts of E2B's service would lead to its dashboard. */
function failureText(error: unknown): string {
  const { name, cause } = error as { readonly name?: string; readonly cause?: unknown };
  if (name === "AuthenticationError")
    return "the server does not take the key: set E2B_API_KEY, or COPPICE_TOKEN to a JWT, or use a context";
  if (error instanceof TypeError && cause !== undefined)
    return `cannot reach the server: ${messageOf(cause)}`;
  return messageOf(error);
}

function milliseconds(text: string): number {
  const parsed = duration().safeParse(text);
  if (parsed.data !== undefined && parsed.data > 0) return parsed.data;
  throw new InvalidArgumentError("It is a length of time, as 5m.");
}

function named(
  text: string,
  before: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  const at = text.indexOf("=");
  if (at < 1) throw new InvalidArgumentError("It is name=value.");
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

function count(text: string): number {
  if (!/^[1-9]\d{0,3}$/.test(text)) throw new InvalidArgumentError("It is a number.");
  return Number(text);
}

function port(text: string): number {
  if (!/^\d{1,5}$/.test(text) || Number(text) > 65_535) throw new InvalidArgumentError("It is a port.");
  return Number(text);
}

function portPair(text: string): string {
  const [first = "", ...more] = text.split(":");
  if (more.length > 1 || [first, ...more].some((each) => !/^\d{1,5}$/.test(each) || Number(each) > 65_535))
    throw new InvalidArgumentError("It is a port, or two as 8080:80.");
  return text;
}
