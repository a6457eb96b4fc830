import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { eventually } from "@coppice/core/testing";
import { makeInstallation, ServerProcess } from "./server-process.js";

/** Folder of the repository with a folder for each template. */
export const RECIPES = fileURLToPath(new URL("../../../../templates", import.meta.url));
const BUILD_TIMEOUT_MS = 900_000;

export interface RecipesServerOptions {
  /** Templates of the repository, each after the one that it starts from. */
  readonly names: readonly string[];
  /** Folder with a folder for each of them. */
  readonly folder?: string;
  /** `templates.pins` */
  readonly pins: string;
  /** Address of a registry of this host that can be pushed to. */
  readonly registry?: string;
}

/** A server with its templates. */
export interface RecipesServer extends AsyncDisposable {
  readonly server: ServerProcess;
  readonly configFile: string;
  /** Line of the log with the reason for which a template could not be built; undefined when all are ready. */
  readonly failure: string | undefined;
}

/** Starts a server of linux-namespaces, and waits until templates of the repository are ready there, or one has failed. */
export async function startRecipesServer(options: RecipesServerOptions): Promise<RecipesServer> {
  const { names, folder = RECIPES, pins, registry } = options;
  const servers = nameservers();
  const certificates = process.env["SSL_CERT_FILE"] ?? "none";
  const reach = registry === undefined ? [] : [registry];
  const installation = await makeInstallation({
    config: {
      sandboxes: {
        defaultBackend: "linux-namespaces",
        templates: Object.fromEntries(names.map((name) => [name, {}])),
      },
      log: { level: "info" },
    },
    plugins: (directory) => ({
      "local-process": undefined,
      "jupyter": {},
      "linux-namespaces": {
        directory: join(directory, "namespaces"),
        egress: "auto",
        egressRange: "10.241.0.0/16",
        // The registries of a company, and its name servers, may have private addresses.
        egressBlocked: ["127.0.0.0/8", "169.254.0.0/16"],
        ...(servers.length > 0 && { nameservers: servers }),
      },
      "templates": {
        recipes: Object.fromEntries(names.map((name) => [name, join(folder, name, "recipe.yaml")])),
        pins,
        registries: { private: reach, insecure: reach },
        // What this machine trusts is nobody else's business; behind a proxy that opens TLS, it is needed.
        builds: { certificates },
      },
    }),
  });
  const server = await ServerProcess.start(installation.configFile);
  const dispose = async (): Promise<void> => {
    await server.stop();
    await installation.remove();
  };
  try {
    const find = (pattern: RegExp): string | undefined => server.printed.find((line) => pattern.test(line));
    const isReady = (): boolean =>
      names.every((name) => find(new RegExp(`'${name}' is ready`)) !== undefined);
    const failure = (): string | undefined => find(/was not built/);
    await eventually("the templates", () => isReady() || failure() !== undefined, BUILD_TIMEOUT_MS);
    return {
      server,
      configFile: installation.configFile,
      failure: failure(),
      [Symbol.asyncDispose]: dispose,
    };
  } catch (error) {
    await dispose();
    throw error;
  }
}

/** Name servers of this host that sandboxes can reach, too. */
function nameservers(): readonly string[] {
  const lines = readFileSync("/etc/resolv.conf", "utf8").matchAll(/^nameserver (\d+\.\d+\.\d+\.\d+)$/gm);
  return [...lines].map(([, address = ""]) => address).filter((address) => !address.startsWith("127."));
}
