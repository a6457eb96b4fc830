import { z } from "zod";

/**
 * Schema of variables for programs. Those that execve would refuse are refused here, with an explanation.
 * @param limitBytes bytes of one variable, `name=value`.
 */
export function environmentVariables(limitBytes: number) {
  return z.record(z.string(), z.string()).superRefine((variables, context) => {
    for (const [name, value] of Object.entries(variables)) {
      const refuse = (message: string): void => context.addIssue({ code: "custom", message, path: [name] });
      if (name === "" || /[=\0]/.test(name))
        refuse("a variable's name is not empty and has no '=' or NUL in it");
      else if (value.includes("\0")) refuse("a variable has no NUL in it");
      // "=" and the closing NUL count, too.
      else if (Buffer.byteLength(name) + Buffer.byteLength(value) + 2 > limitBytes) {
        refuse(`a variable is no longer than ${limitBytes} bytes`);
      }
    }
  });
}
