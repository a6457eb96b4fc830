import { readConfig } from "../config/read.js";
import { configure } from "../boot/configure.js";
import { tokenName } from "../kernel/token.js";
import { printLine } from "./terminal.js";

/** Lists the plugins of a configuration in set-up order, with the services they require and provide. */
export async function plugins(
  file: string,
  { json }: { readonly json?: true | undefined } = {},
): Promise<number> {
  const { plugins: enabled } = await configure(readConfig(file, process.env));
  const listed = enabled.map(({ plugin }) => ({
    name: plugin.name,
    requires: Object.values(plugin.requires).map(tokenName),
    uses: Object.values(plugin.uses).map(tokenName),
    provides: plugin.provides.map(tokenName),
  }));
  if (json) printLine(JSON.stringify(listed));
  else
    for (const { name, requires, uses, provides } of listed) {
      const used = uses.length === 0 ? "" : `uses ${uses.join(", ")}; `;
      printLine(
        `${name}: requires ${requires.join(", ") || "nothing"}; ${used}provides ${provides.join(", ") || "nothing"}`,
      );
    }
  return 0;
}
