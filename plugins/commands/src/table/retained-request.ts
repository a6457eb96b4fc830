import type { StartCommand } from "../contract/commands.js";

/** The kept part of a running command's request: all of it, or only the first arguments when it is long. */
export function retainedRequest(request: StartCommand, mostBytes: number): StartCommand {
  const { args = [], environment = {} } = request;
  let bytes = Buffer.byteLength(request.path);
  for (const text of [...args, ...Object.entries(environment).flat()]) bytes += Buffer.byteLength(text);
  if (bytes <= mostBytes) return request;
  const kept: string[] = [];
  let left = mostBytes;
  for (const argument of args) {
    left -= Buffer.byteLength(argument);
    if (left < 0) break;
    kept.push(argument);
  }
  return { ...request, path: cut(request.path, mostBytes), args: kept, environment: undefined };
}

/** The kept part of an ended command's request. */
export function withoutVariables(request: StartCommand): StartCommand {
  return { ...request, environment: undefined };
}

/** Copies: a slice of a string keeps all of it in memory. */
function cut(text: string, mostBytes: number): string {
  return Buffer.from(text).subarray(0, mostBytes).toString();
}
