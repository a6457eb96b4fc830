import { testNetworkFaults } from "../../harness/freebsd/test-network-faults.js";

testNetworkFaults("alias");
