import { SandboxError } from "../../kernel/errors.js";

/** `name=value` options as an object. @throws SandboxError invalid_argument that names the option. */
export function namedValues(option: string, texts: readonly string[]): Readonly<Record<string, string>> {
  return Object.fromEntries(
    texts.map((text) => {
      const at = text.indexOf("=");
      if (at < 1) throw new SandboxError("usage_invalid", `${option} is name=value`);
      return [text.slice(0, at), text.slice(at + 1)];
    }),
  );
}
