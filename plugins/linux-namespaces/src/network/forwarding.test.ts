import { it } from "node:test";
import { reasonWithoutEgress } from "../testing/open-internet.js";
import { testApart } from "../testing/test-apart.js";

const skip = reasonWithoutEgress() ?? false;

it("egress by nat turns forwarding on and off", { skip }, async (context) => {
  const place = { enter: ["unshare", "--net"], uid: 0 } as const;
  await testApart(context, place, ["testing/forwarding-cases.js"]);
});
