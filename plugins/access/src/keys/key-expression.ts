/**
 * Shell expression for E2B_API_KEY. It holds no key: text that a server prints may be kept in a log.
 * @param keyFile of the development key.
 */
export function keyExpression(keyFile: string | undefined): string {
  if (keyFile === undefined) return "<one of plugins.access, or of coppice keys create>";
  return `"$(cat '${keyFile.replaceAll("'", "'\\''")}')"`;
}
