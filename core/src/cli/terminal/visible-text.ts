// Anything but tabs and newlines among the control characters (C0, DEL, C1): a terminal would obey them.
// eslint-disable-next-line no-control-regex
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** Shows each control character as `\x1b`: a sandbox's output must not steer the terminal. */
export function visibleText(text: string): string {
  return text.replaceAll(CONTROLS, (each) => `\\x${each.charCodeAt(0).toString(16).padStart(2, "0")}`);
}
