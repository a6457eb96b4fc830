import { after, before, describe } from "node:test";
import { Sandbox } from "e2b";
import type { TestServer } from "@coppice/core/testing";
import { pointSdkAt } from "../harness/point-sdk-at.js";
import { startFullServer } from "../harness/start-full-server.js";
import { fileScenarios } from "./file-scenarios.js";

describe("files through the e2b SDK", { timeout: 60_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;

  before(async () => {
    server = await startFullServer();
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
  });
  after(() => server.stop());

  fileScenarios(() => sandbox);
});
