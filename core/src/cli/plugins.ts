import { readConfig } from "../config/read.js";
import { configure } from "../boot/configure.js";
import { tokenName } from "../kernel/token.js";
import { configArgument } from "./arguments/config-argument.js";

/** Lists the plugins of a configuration in set-up order, with the services they require and provide. */
export async function plugins(args: readonly string[]): Promise<number> {
  const { plugins: enabled } = await configure(readConfig(configArgument(args), process.env));
  for (const { plugin } of enabled) {
    const requires = Object.values(plugin.requires).map(tokenName).join(", ") || "nothing";
    const provides = plugin.provides.map(tokenName).join(", ") || "nothing";
    process.stdout.write(`${plugin.name}: requires ${requires}; provides ${provides}\n`);
  }
  return 0;
}
