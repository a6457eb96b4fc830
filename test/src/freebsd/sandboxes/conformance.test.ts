import { hostTitle, NETWORK_HOSTS } from "../../harness/freebsd/network-hosts.js";
import { testJails } from "../../harness/freebsd/test-jails.js";

const [host] = NETWORK_HOSTS;
testJails(`jail-freebsd with ${hostTitle(host)}`, host);
