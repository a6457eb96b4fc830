import { messageOf, SandboxError } from "@coppice/core";
import type { Limits } from "@coppice/core/backend";
import type { Ability, Facet, Need } from "./conformance-case.js";
import type { ConformanceContext } from "./conformance-context.js";

const LIMITS_OF_ISOLATION: readonly (keyof Limits)[] = ["processes", "memoryMiB"];

/** Reason why a need is not met, as a sentence; undefined when it is met. */
export async function reasonUnmet(need: Need, context: ConformanceContext): Promise<string | undefined> {
  if (typeof need === "object") {
    if ("program" in need) return reasonWithoutProgram(need.program, context);
    const enforced = context.subject.limits ?? LIMITS_OF_ISOLATION;
    return enforced.includes(need.limit) ? undefined : `the limit ${need.limit} is not said to be enforced`;
  }
  switch (need) {
    case "isolation":
      return context.backend.isolated ? undefined : "the backend declares that it does not isolate";
    case "stateDirectory":
      return context.subject.stateDirectory === undefined
        ? "where on this host its files are kept is not said"
        : undefined;
    case "ownUsers":
      return context.subject.hasOwnUsers === true
        ? undefined
        : "its sandboxes are not said to have users of their own";
    case "outside":
      return context.subject.outside === undefined ? "no server outside is named" : undefined;
    case "terminals":
    case "watching":
    case "metadata":
    case "accounts":
      return ABILITIES[need](context);
    default:
      return reasonWithoutFacet(need, context);
  }
}

/** The abilities of the case's sandbox, each tried. */
export async function findAbilities(context: ConformanceContext): Promise<readonly Ability[]> {
  const found: Ability[] = [];
  for (const ability of Object.keys(ABILITIES) as Ability[]) {
    if ((await ABILITIES[ability](context)) === undefined) found.push(ability);
  }
  return found;
}

const ABILITIES: Readonly<Record<Ability, (context: ConformanceContext) => Promise<string | undefined>>> = {
  async terminals(context) {
    try {
      const tried = await context.startProgram("true", [], { terminal: { columns: 80, rows: 24 } });
      await context.finish(tried);
      return undefined;
    } catch (error) {
      // Any other failure does not mean that there are none.
      if (!(error instanceof SandboxError) || !/terminal/.test(error.message)) throw error;
      return `its commands get no terminal: ${messageOf(error)}`;
    }
  },
  async watching({ sandbox }) {
    return sandbox.files.watch === undefined ? "its files cannot be watched by the backend" : undefined;
  },
  async metadata(context) {
    const { files } = context.sandbox;
    const path = context.home("has-metadata");
    const { metadata } = await files.write(path, nothing(), { metadata: { tried: "yes" } });
    await files.remove(path);
    return metadata["tried"] === "yes" ? undefined : "its files keep no metadata";
  },
  async accounts({ sandbox, user }) {
    let root;
    try {
      root = await sandbox.user("root");
    } catch (error) {
      if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
      return "it has no account root";
    }
    return root.uid === user.uid ? "its users are all the same account" : undefined;
  },
};

function reasonWithoutFacet(facet: Facet, context: ConformanceContext): string | undefined {
  return facetOf(facet, context) === undefined ? `its sandboxes have no ${facet}` : undefined;
}

/** A facet of the case's sandbox, or of its backend, if present. */
export function facetOf(facet: Facet, { backend, sandbox }: ConformanceContext): object | undefined {
  return facet === "volumes" || facet === "images" ? backend[facet] : sandbox[facet];
}

async function reasonWithoutProgram(
  program: string,
  context: ConformanceContext,
): Promise<string | undefined> {
  const { exit } = await context.shell('command -v "$1"', { args: [program] });
  return exit.code === 0 ? undefined : `the sandbox has no ${program}`;
}

async function* nothing(): AsyncGenerator<Uint8Array> {}
