export async function conform(_args: readonly string[]): Promise<number> {
  return 0;
}
