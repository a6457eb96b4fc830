import { SandboxError } from "../../kernel/errors.js";
import type { ImageSource } from "../contract/backend.js";

/** Refuses an image that has reached a limit while it was unpacked. */
export function imageTooLarge({ maxBytes, maxEntries }: ImageSource): SandboxError {
  const text = `the image unpacks to more than ${maxBytes} bytes or ${maxEntries} files, or takes too long`;
  return new SandboxError("image_too_large", text);
}
