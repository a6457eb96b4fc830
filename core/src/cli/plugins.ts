import { readConfig } from "../config/read.js";
import { configure } from "../boot/configure.js";
import { tokenName } from "../kernel/token.js";

/** Lists the plugins of a configuration in set-up order, with the services they require and provide. */
export async function plugins(file: string): Promise<number> {
  const { plugins: enabled } = await configure(readConfig(file, process.env));
  for (const { plugin } of enabled) {
    const requires = Object.values(plugin.requires).map(tokenName).join(", ") || "nothing";
    const used = Object.values(plugin.uses).map(tokenName).join(", ");
    const uses = used === "" ? "" : `uses ${used}; `;
    const provides = plugin.provides.map(tokenName).join(", ") || "nothing";
    process.stdout.write(`${plugin.name}: requires ${requires}; ${uses}provides ${provides}\n`);
  }
  return 0;
}
