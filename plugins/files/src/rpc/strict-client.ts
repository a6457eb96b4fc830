import { create } from "@bufbuild/protobuf";
import { type EntryInfo, EntryInfoSchema } from "../generated/filesystem/filesystem_pb.js";

// User agent of Python SDKs of 2024 (e2b 1.0); later ones send `e2b-python-sdk/<version>`.
const STRICT_USER_AGENT = "connect-python";

/**
 * The part of an entry that a client can read. E2B's first Python SDKs fail with `has no field named "size"` at every
 * field added later, where all others ignore unknown fields. May go with the older SDK of the tests.
 */
export function readableBy(headers: Headers, entry: EntryInfo): EntryInfo {
  if (headers.get("user-agent") !== STRICT_USER_AGENT) return entry;
  const { name, type, path } = entry;
  return create(EntryInfoSchema, { name, type, path });
}
