import { testJails } from "../../harness/freebsd/test-jails.js";

testJails("jail-freebsd over zfs-fuse and stand-ins for jails", {});
