import { tokenName } from "./token.js";

/** The parts of a plugin that its order depends on. */
export interface Orderable {
  readonly name: string;
  readonly requires: Readonly<Record<string, symbol>>;
  /** As `requires`, for services whose absence is no problem. */
  readonly uses: Readonly<Record<string, symbol>>;
  readonly provides: readonly symbol[];
}

/**
 * Sorts plugins into the order in which they can be set up: providers before dependents, otherwise as given. Problems
 * are missing providers, tokens provided twice, and cycles. @param builtIn tokens that the server itself provides.
 */
export function orderPlugins<T extends Orderable>(plugins: readonly T[], builtIn: ReadonlySet<symbol>) {
  const problems: { plugin: T; message: string }[] = [];
  const note = (plugin: T, message: string): void => void problems.push({ plugin, message });
  const providers = new Map<symbol, T>();
  for (const plugin of plugins) {
    for (const token of plugin.provides) {
      const other = providers.get(token);
      if (builtIn.has(token)) {
        note(
          plugin,
          `plugin '${plugin.name}' provides '${tokenName(token)}', which the server itself provides`,
        );
      } else if (other !== undefined) {
        note(plugin, `plugins '${other.name}' and '${plugin.name}' both provide '${tokenName(token)}'`);
      } else providers.set(token, plugin);
    }
  }
  const ordered: T[] = [];
  const path: T[] = [];
  const visit = (plugin: T): void => {
    if (ordered.includes(plugin)) return;
    if (path.includes(plugin)) {
      const cycle = [...path.slice(path.indexOf(plugin)), plugin].map(({ name }) => name).join(" -> ");
      note(plugin, `plugins require each other in a circle: ${cycle}`);
      return;
    }
    path.push(plugin);
    for (const token of Object.values(plugin.requires)) {
      const provider = providers.get(token);
      if (provider !== undefined) visit(provider);
      else if (!builtIn.has(token)) {
        note(
          plugin,
          `plugin '${plugin.name}' requires '${tokenName(token)}', which no enabled plugin provides`,
        );
      }
    }
    for (const token of Object.values(plugin.uses)) {
      const provider = providers.get(token);
      if (provider !== undefined) visit(provider);
    }
    path.pop();
    ordered.push(plugin);
  };
  for (const plugin of plugins) visit(plugin);
  return { ordered, problems };
}
