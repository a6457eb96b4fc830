import type { ShellRoute } from "../wire/route.js";

interface Matched {
  readonly route: ShellRoute;
  readonly params: Readonly<Record<string, string>>;
}

/** Finds the route of a request that comes without a router. @returns undefined where there is none. */
export function routeMatcher(
  routes: readonly ShellRoute[],
): (method: string, pathname: string) => Matched | undefined {
  const patterns = routes.map((route) => ({
    route,
    pattern: new RegExp(`^${route.path.replace(/:(\w+)/g, "(?<$1>[^/]+)")}$`),
  }));
  return (method, pathname) => {
    for (const { route, pattern } of patterns) {
      const found = route.method === method ? pattern.exec(pathname) : null;
      if (found === null) continue;
      try {
        const groups = Object.entries(found.groups ?? {});
        return {
          route,
          params: Object.fromEntries(groups.map(([name, text]) => [name, decodeURIComponent(text)])),
        };
      } catch {
        return undefined;
      }
    }
    return undefined;
  };
}
