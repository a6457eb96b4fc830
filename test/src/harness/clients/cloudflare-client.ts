import type * as Client from "@cloudflare/sandbox";

/** The example's file with the hooks that let Node import the client: users copy the one that the tests use. */
const IN_NODE = new URL("../../../../examples/shell-sessions/cloudflare-in-node.mjs", import.meta.url).href;

interface OpenSandbox {
  /** Of the sandbox's API, without a slash at its end. */
  readonly url: string;
  /** Sent with every request. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Part of the name of the session that calls without one share. */
  readonly name?: string;
}

interface InNode {
  importClient(): Promise<typeof Client>;
  openSandbox(options: OpenSandbox): Promise<Client.Sandbox>;
}

const inNode = (await import(IN_NODE)) as InNode;

/** The exports of the unmodified `@cloudflare/sandbox`. */
export const cloudflare: typeof Client = await inNode.importClient();

/** Makes the client's class `Sandbox`, which elsewhere a Durable Object is, for one sandbox of a server. */
export const openCloudflareSandbox: InNode["openSandbox"] = (options) => inNode.openSandbox(options);
