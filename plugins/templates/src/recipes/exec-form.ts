import type { Instruction } from "dockerfile-ast";
import { z } from "zod";

const words = z.array(z.string()).min(1);

/** The words of `["a", "b"]` behind an instruction and its flags; undefined for another form. */
export function execForm(instruction: Instruction): readonly string[] | undefined {
  // The parser's own reading of the words loses their spaces.
  const text = (instruction.getArgumentsContent() ?? "").replace(/^(\s*--\S+)*\s*/, "");
  if (!text.startsWith("[")) return undefined;
  try {
    return words.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}
