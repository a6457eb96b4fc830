/** The part of a path right below another one, as an id or a name; undefined for a path that is elsewhere. */
export function nameBelow(path: string): (pathname: string) => string | undefined {
  const start = `${path}/`;
  return (pathname) => (pathname.startsWith(start) ? pathname.slice(start.length).split("/")[0] : undefined);
}
