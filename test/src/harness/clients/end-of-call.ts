import type { Execution } from "@e2b/code-interpreter";

export const TIMED_OUT = "timed out";

/** How a call ended: timed out, the name of its error, or undefined when it simply ended. */
export async function endOf(call: Promise<Execution>): Promise<string | undefined> {
  try {
    return (await call).error?.name;
  } catch (error) {
    if (error instanceof Error && error.message.includes("Execution timed out")) return TIMED_OUT;
    throw error;
  }
}
